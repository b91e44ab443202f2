// A rank on cuda:0, which checks its calls. Results are compared with the reduction on the CPU, which has its own
// reference tests.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/small_floats.hpp"
#include "comm/reduce/reduce.hpp"
#include "slip/slip.hpp"

namespace slip::test {

inline constexpr std::size_t kMaxBytes = 24 << 20;
inline constexpr DataType kTypes[] = {DataType::kI8,  DataType::kU8,  DataType::kI32,    DataType::kU32,
                                      DataType::kI64, DataType::kU64, DataType::kF16,    DataType::kBF16,
                                      DataType::kF32, DataType::kF64, DataType::kF8E4M3, DataType::kF8E5M2};
inline constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin,
                                    ReduceOp::kMax, ReduceOp::kAvg,  ReduceOp::kPreMulSum};

// Not cudaGetDeviceCount: it creates state of the driver in this process, and the tests with rank processes leave the
// GPU to those.
inline bool has_gpu() { return ::access("/dev/nvidiactl", F_OK) == 0; }

inline bool is_nan(DataType type, const std::byte* place) {
  const auto read = [&](auto value) {
    std::memcpy(&value, place, sizeof(value));
    return value;
  };
  switch (type) {
    case DataType::kF16: return std::isnan(base::to_float(read(base::F16{})));
    case DataType::kBF16: return std::isnan(base::to_float(read(base::Bf16{})));
    case DataType::kF8E4M3: return std::isnan(base::to_float(read(base::F8E4M3{})));
    case DataType::kF8E5M2: return std::isnan(base::to_float(read(base::F8E5M2{})));
    case DataType::kF32: return std::isnan(read(float{}));
    case DataType::kF64: return std::isnan(read(double{}));
    default: return false;
  }
}

// One rank with memory that is allocated once: freeing device memory would wait for the kernels of other ranks.
class GpuRank {
 public:
  GpuRank(const UniqueId& id, int nranks, int rank, const CommunicatorOptions& options = {})
      : comm(Communicator::init(id, nranks, rank, device, options)), random_(7919U) {}

  // Every type and reduction, with sizes that are no multiples of vectors, at odd places, in place and out of place.
  std::string check_reductions() {
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        for (const std::size_t elements : {std::size_t{1}, std::size_t{1 + random_() % 300}, std::size_t{40'011}}) {
          for (const bool in_place : {false, true}) {
            if (const std::string wrong = check_all_reduce(type, op, elements, random_() % 5, in_place); !wrong.empty())
              return wrong;
          }
        }
      }
      if (const std::string wrong = check_reduce_scatter(type, 1 + random_() % 5000); !wrong.empty()) return wrong;
    }
    return check_all_reduce(DataType::kF32, ReduceOp::kSum, 2'000'003, 0, false);
  }

  // Ranks on several hosts divide these calls into more parts than there are slots, so that slots are used again.
  std::string check_many_parts() {
    for (const bool in_place : {false, true}) {
      for (const auto& [type, elements] : {std::pair{DataType::kU8, (4UL << 20) + 1}, {DataType::kF32, 5'000'003UL}}) {
        if (const std::string wrong = check_all_reduce(type, ReduceOp::kSum, elements, 0, in_place); !wrong.empty())
          return wrong;
      }
    }
    const int last = comm.nranks() - 1;
    const std::size_t bytes = 20'000'003;
    put_input(bytes);
    comm.broadcast(out.slice(0, bytes), in.slice(0, bytes), last, stream);
    return compare("broadcast of many parts", input_of(last, bytes));
  }

  std::string check_copies() {
    for (const std::size_t block : {std::size_t{1}, std::size_t{1 + random_() % 4000}, std::size_t{1'000'003}}) {
      if (const std::string wrong = check_copies_of(block); !wrong.empty()) return wrong;
    }
    return {};
  }

  // The smaller of input and output is this rank's part of the larger.
  std::string check_in_place() {
    const auto n = static_cast<std::size_t>(comm.nranks()), own = static_cast<std::size_t>(comm.rank());
    for (const std::size_t elements : {std::size_t{3}, std::size_t{300'007}}) {
      const std::size_t block = elements * sizeof(std::int32_t);
      const auto inputs = make_inputs(DataType::kI32, elements * n);
      put(inputs[own]);
      comm.reduce_scatter(in.slice(own * block, block), in.slice(0, n * block), DataType::kI32, ReduceOp::kSum, stream);
      std::string wrong =
          compare("reduce_scatter in place", reduced(DataType::kI32, ReduceOp::kSum, inputs, elements, own * elements),
                  DataType::kI32, in.slice(own * block, block));
      put(inputs[own]);
      comm.all_gather(in.slice(0, n * block), in.slice(own * block, block), stream);
      Bytes all;
      for (std::size_t rank = 0; rank < n; ++rank) {
        const auto part = inputs[rank].begin() + static_cast<std::ptrdiff_t>(rank * block);
        all.insert(all.end(), part, part + static_cast<std::ptrdiff_t>(block));
      }
      if (wrong.empty()) wrong = compare("all_gather in place", all, DataType::kU8, in.slice(0, n * block));
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

  std::string check_messages() {
    const int n = comm.nranks(), next = (comm.rank() + 1) % n, before = (comm.rank() + n - 1) % n;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{777}, std::size_t{3'000'001}, std::size_t{5'000'003}}) {
      put_input(2 * bytes);
      Group group;  // two messages to the next rank, in order
      comm.send(in.slice(0, bytes), next, stream);
      comm.send(in.slice(bytes, bytes), next, stream);
      comm.recv(out.slice(0, bytes), before, stream);
      comm.recv(out.slice(bytes, bytes), before, stream);
      group.end();
      if (const std::string wrong = compare("messages", input_of(before, 2 * bytes)); !wrong.empty()) return wrong;
    }
    if (n == 1) return {};  // a message to itself needs a group
    put_input(100);
    if (comm.rank() == 0) comm.send(in.slice(0, 100), n - 1, stream);  // alone
    if (comm.rank() == n - 1) comm.recv(out.slice(0, 100), 0, stream);
    stream.sync();
    return comm.rank() == n - 1 ? compare("a message alone", input_of(0, 100)) : "";
  }

  // A CUDA graph that the program captures itself, in a stream that Slipstream adopts, is replayed with new input.
  std::string check_graph() {
    cudaStream_t const native = other.native();
    std::string wrong;
    {
      const Stream adopted = device.adopt(native);
      const std::size_t bytes = 5000 * sizeof(float);
      comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, adopted);
      adopted.sync();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal);
      comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, adopted);
      comm.broadcast(out.slice(bytes, 100), in.slice(bytes, 100), 0, adopted);
      if (cudaStreamEndCapture(native, &graph) != cudaSuccess) return "the capture failed";
      if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) return "the graph cannot be instantiated";
      for (int round = 0; round < 3 && wrong.empty(); ++round) {
        const auto inputs = make_inputs(DataType::kF32, 5000);
        put(inputs[static_cast<std::size_t>(comm.rank())]);
        const auto sent = make_inputs(DataType::kU8, 100);
        put(sent[static_cast<std::size_t>(comm.rank())], bytes);
        cudaGraphLaunch(exec, native);
        cudaStreamSynchronize(native);
        wrong = compare("a replayed graph", reduced(DataType::kF32, ReduceOp::kSum, inputs, 5000), DataType::kF32);
        if (wrong.empty())
          wrong = compare("a broadcast in a graph", sent.front(), DataType::kU8, out.slice(bytes, 100));
      }
      comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, stream);
      stream.sync();
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
    }
    return wrong;
  }

  std::string check_plan() {
    stream.begin_capture();
    comm.all_reduce(out.slice(0, 4000), in.slice(0, 4000), DataType::kI32, ReduceOp::kSum, stream);
    Plan plan = stream.end_capture();
    for (int round = 0; round < 3; ++round) {
      const auto inputs = make_inputs(DataType::kI32, 1000);
      put(inputs[static_cast<std::size_t>(comm.rank())]);
      stream.launch(plan);
      const std::string wrong =
          compare("a launched plan", reduced(DataType::kI32, ReduceOp::kSum, inputs, 1000), DataType::kI32);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

  std::string check_split() {
    std::optional<Communicator> half = comm.split(comm.rank() % 2, -comm.rank());
    if (!half) return "no communicator";
    *host.host_write<std::int32_t>().begin() = comm.rank() + 1;
    stream.copy(in.slice(0, 4), host.slice(0, 4));
    half->all_reduce(out.slice(0, 4), in.slice(0, 4), DataType::kI32, ReduceOp::kSum, stream);
    stream.copy(host.slice(0, 4), out.slice(0, 4));
    stream.sync();
    std::int32_t expected = 0;
    for (int rank = comm.rank() % 2; rank < comm.nranks(); rank += 2) expected += rank + 1;
    const std::int32_t got = host.host_read<std::int32_t>()[0];
    comm.barrier(stream);  // no rank frees memory of its half while the other ranks' kernels run
    stream.sync();
    return got == expected ? "" : fmt::format("split: {} instead of {}", got, expected);
  }

  std::string check_everything() {
    for (const auto check :
         {&GpuRank::check_reductions, &GpuRank::check_copies, &GpuRank::check_in_place, &GpuRank::check_messages,
          &GpuRank::check_graph, &GpuRank::check_plan, &GpuRank::check_split}) {
      const std::string wrong = (this->*check)();
      const std::string text = wrong.empty() ? "" : fmt::format("rank {}: {}", comm.rank(), wrong);
      if (!text.empty()) {
        comm.fail(ErrorCode::kLaunchFailed, text);
        return text;
      }
    }
    comm.finalize();
    return {};
  }

  const Device device = Device::open("cuda:0");
  Buffer in = device.alloc(kMaxBytes, MemoryKind::kDevice, "in"), out = device.alloc(kMaxBytes, MemoryKind::kDevice),
         host = device.alloc(kMaxBytes, MemoryKind::kPinned, "host");
  // All streams are opened before the first call: see backend/cuda/stream_setup.hpp.
  const Stream stream = device.stream(StreamFlags::kNonBlocking), other = device.stream(StreamFlags::kNonBlocking);
  Communicator comm;

 private:
  using Bytes = std::vector<std::byte>;

  // The same on all ranks: each rank knows the inputs of all.
  std::vector<Bytes> make_inputs(DataType type, std::size_t elements) {
    std::vector<Bytes> all(static_cast<std::size_t>(comm.nranks()));
    for (Bytes& one : all) {
      one.resize(elements * bytes_of(type));
      for (std::byte& byte : one) byte = static_cast<std::byte>(random_());
    }
    return all;
  }
  Bytes reduced(DataType type, ReduceOp op, const std::vector<Bytes>& inputs, std::size_t elements,
                std::size_t first = 0) const {
    std::vector<const void*> sources;
    std::vector<comm::ReduceScale> scales;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      sources.push_back(inputs[rank].data() + first * bytes_of(type));
      scales.push_back(comm::scale_of(type, static_cast<double>(rank + 1), {}));
    }
    comm::Reduction how{type, op, op == ReduceOp::kAvg ? inputs.size() : 1, {}};
    if (op == ReduceOp::kPreMulSum) how.scales = scales;
    Bytes result(elements * bytes_of(type));
    comm::reduce(how, result.data(), sources, elements);
    return result;
  }
  void put(const Bytes& bytes, std::size_t offset = 0) {
    std::memcpy(host.host_write<std::byte>().begin(), bytes.data(), bytes.size());
    stream.copy(in.slice(offset, bytes.size()), host.slice(0, bytes.size()));
    stream.sync();
  }
  std::string compare(const std::string& what, const Bytes& expected, DataType type = DataType::kU8,
                      std::optional<Range> from = {}) {
    stream.copy(host.slice(0, expected.size()), from ? *from : Range(out.slice(0, expected.size())));
    stream.sync();
    const auto view = host.host_read<std::byte>();
    const std::size_t size = bytes_of(type);
    for (std::size_t i = 0; i < expected.size(); i += size) {
      if (std::memcmp(view.begin() + i, expected.data() + i, size) == 0) continue;
      if (is_nan(type, view.begin() + i) && is_nan(type, expected.data() + i)) continue;
      return fmt::format("{}: element {} of {} differs", what, i / size, expected.size() / size);
    }
    return {};
  }

  std::string check_all_reduce(DataType type, ReduceOp op, std::size_t elements, std::size_t shift, bool in_place) {
    const std::size_t bytes = elements * bytes_of(type), offset = shift * bytes_of(type);
    const auto inputs = make_inputs(type, elements);
    put(inputs[static_cast<std::size_t>(comm.rank())], offset);
    const Range from = in.slice(offset, bytes), to = in_place ? from : Range(out.slice(0, bytes));
    const ReduceSpec how = op == ReduceOp::kPreMulSum ? premul_sum(comm.rank() + 1) : ReduceSpec(op);
    comm.all_reduce(to, from, type, how, stream);
    return compare(fmt::format("all_reduce of {} {} by {}{}, shifted by {}", elements, data_type_name(type),
                               reduce_op_name(op), in_place ? " in place" : "", shift),
                   reduced(type, op, inputs, elements), type, to);
  }
  std::string check_reduce_scatter(DataType type, std::size_t elements) {
    const auto n = static_cast<std::size_t>(comm.nranks()), own = static_cast<std::size_t>(comm.rank());
    const std::size_t block = elements * bytes_of(type);
    const auto inputs = make_inputs(type, elements * n);
    put(inputs[own]);
    comm.reduce_scatter(out.slice(0, block), in.slice(0, n * block), type, ReduceOp::kSum, stream);
    const Bytes expected = reduced(type, ReduceOp::kSum, inputs, elements, own * elements);
    if (std::string wrong = compare("reduce_scatter", expected, type); !wrong.empty()) return wrong;
    comm.reduce(out.slice(0, block), in.slice(0, block), type, ReduceOp::kMax, comm.nranks() - 1, stream);
    stream.sync();
    if (own + 1 != n) return {};
    return compare("reduce", reduced(type, ReduceOp::kMax, inputs, elements), type);
  }

  Bytes input_of(int rank, std::size_t bytes) const {
    std::mt19937 random(static_cast<unsigned>(rank) * 31U + static_cast<unsigned>(bytes));
    Bytes result(bytes);
    for (std::byte& byte : result) byte = static_cast<std::byte>(random());
    return result;
  }
  void put_input(std::size_t bytes) { put(input_of(comm.rank(), bytes)); }

  std::string check_copies_of(std::size_t block) {
    const auto n = static_cast<std::size_t>(comm.nranks()), own = static_cast<std::size_t>(comm.rank());
    const int last = comm.nranks() - 1;
    Bytes all, exchanged;
    for (int rank = 0; rank < comm.nranks(); ++rank) {
      const Bytes input = input_of(rank, n * block);
      all.insert(all.end(), input.begin(), input.begin() + static_cast<std::ptrdiff_t>(block));
      const auto part = input.begin() + static_cast<std::ptrdiff_t>(own * block);
      exchanged.insert(exchanged.end(), part, part + static_cast<std::ptrdiff_t>(block));
    }
    put_input(n * block);
    const Bytes root = input_of(last, n * block), first = input_of(0, n * block);
    const auto part_of = [&](const Bytes& bytes, std::size_t index) {
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(index * block);
      return Bytes(begin, begin + static_cast<std::ptrdiff_t>(block));
    };
    std::string wrong;
    const auto check = [&](const char* what, const Bytes& expected, bool counts = true) {
      const std::string here = compare(fmt::format("{} of {} bytes", what, block), expected);
      if (counts && wrong.empty()) wrong = here;
    };
    comm.all_gather(out.slice(0, n * block), in.slice(0, block), stream);
    check("all_gather", all);
    comm.all_to_all(out.slice(0, n * block), in.slice(0, n * block), stream);
    check("all_to_all", exchanged);
    comm.broadcast(out.slice(0, block), in.slice(0, block), last, stream);
    check("broadcast", part_of(root, 0));
    comm.scatter(out.slice(0, block), in.slice(0, n * block), 0, stream);
    check("scatter", part_of(first, own));
    comm.gather(out.slice(0, n * block), in.slice(0, block), last, stream);
    check("gather", all, comm.rank() == last);
    comm.barrier(stream);
    comm.all_to_all(in.slice(0, n * block), in.slice(0, n * block), stream);  // in place: the input is copied first
    const std::string here = compare("all_to_all in place", exchanged, DataType::kU8, in.slice(0, n * block));
    return wrong.empty() ? here : wrong;
  }

  std::mt19937 random_;
};

}  // namespace slip::test
