#include "cli/collectives/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/clock.hpp"
#include "base/quantity_text.hpp"
#include "base/small_floats.hpp"
#include "cli/commands.hpp"
#include "comm/reduce/reduce.hpp"
#include "comm/sim/predict.hpp"

namespace slip::cli {

std::uint64_t size_of(const std::string& text, const char* option) {
  std::uint64_t bytes = 0;
  if (!base::parse_bytes(text, bytes) || bytes == 0)
    throw UsageError(fmt::format("{} {}: a size is expected, such as 8, 64K or 256MiB", option, text));
  return bytes;
}

double bus_share(comm::Collective kind, int nranks) {
  const double others = static_cast<double>(nranks - 1) / nranks;
  switch (kind) {
    case comm::Collective::kAllReduce: return 2 * others;
    case comm::Collective::kReduce:
    case comm::Collective::kBroadcast:
    case comm::Collective::kBarrier:
    case comm::Collective::kMessage: return 1;
    default: return others;
  }
}

bool counts_all_blocks(comm::Collective kind) {
  return kind != comm::Collective::kAllReduce && kind != comm::Collective::kReduce &&
         kind != comm::Collective::kBroadcast && kind != comm::Collective::kMessage;
}

namespace {

constexpr std::size_t kPeriod = 61;  // a prime: repeated values do not align with chunks, slices or cache lines

template <class T>
void put(std::byte* place, T value) {
  std::memcpy(place, &value, sizeof(value));
}

// Writes 1 or 2 in the given type: sums and products of a few ranks are exact in most types.
void put_value(DataType type, std::byte* place, int value) {
  const auto real = static_cast<float>(value);
  switch (type) {
    case DataType::kF8E4M3: return put(place, base::from_float<base::F8E4M3>(real));
    case DataType::kF8E5M2: return put(place, base::from_float<base::F8E5M2>(real));
    case DataType::kF16: return put(place, base::from_float<base::F16>(real));
    case DataType::kBF16: return put(place, base::from_float<base::Bf16>(real));
    case DataType::kF32: return put(place, real);
    case DataType::kF64: return put(place, static_cast<double>(value));
    case DataType::kBool:
    case DataType::kU8:
    case DataType::kI8: return put(place, static_cast<std::uint8_t>(value));
    case DataType::kU16:
    case DataType::kI16: return put(place, static_cast<std::uint16_t>(value));
    case DataType::kU32:
    case DataType::kI32: return put(place, static_cast<std::uint32_t>(value));
    case DataType::kU64:
    case DataType::kI64: return put(place, static_cast<std::uint64_t>(value));
  }
}

// One period of a rank's values, starting with value number `first`.
std::vector<std::byte> values_of(DataType type, int rank, std::size_t first) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  const std::size_t size = bytes_of(type);
  std::vector<std::byte> values(kPeriod * size);
  for (std::size_t i = 0; i < kPeriod; ++i)
    put_value(type, values.data() + i * size, 1 + static_cast<int>(random() % 2));
  std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(first % kPeriod * size), values.end());
  return values;
}

void repeat(std::span<const std::byte> values, std::span<std::byte> into) {
  const std::size_t first = std::min(values.size(), into.size());
  if (first == 0) return;
  std::memcpy(into.data(), values.data(), first);
  // Doubles the filled part, in whole periods.
  for (std::size_t done = first; done < into.size();) {
    const std::size_t more = std::min(done, into.size() - done);
    std::memcpy(into.data() + done, into.data(), more);
    done += more;
  }
}

std::uint64_t differing(std::span<const std::byte> values, std::span<const std::byte> block, std::size_t size) {
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < block.size(); at += values.size()) {
    const std::size_t bytes = std::min(values.size(), block.size() - at);
    if (std::memcmp(block.data() + at, values.data(), bytes) == 0) continue;
    for (std::size_t i = 0; i < bytes; i += size)
      wrong += std::memcmp(block.data() + at + i, values.data() + i, size) != 0;
  }
  return wrong;
}

// One period of the reduced values of all ranks, starting with value number `first`.
std::vector<std::byte> reduced(const comm::Call& call, int nranks, std::size_t first) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const void*> sources;
  for (int rank = 0; rank < nranks; ++rank) all.push_back(values_of(call.type, rank, first));
  for (const auto& one : all) sources.push_back(one.data());
  std::vector<std::byte> result(all.front().size());
  comm::reduce({call.type, call.op, call.op == ReduceOp::kAvg ? static_cast<std::uint64_t>(nranks) : 1, {}},
               result.data(), sources, kPeriod);
  return result;
}

// How many blocks a rank gives and gets. With messages it is one each: to the next rank, and from the previous one.
comm::Blocks bench_blocks(const comm::Call& call, int rank, int nranks) {
  return call.kind == comm::Collective::kMessage ? comm::Blocks{1, 1} : comm::blocks_of(call, rank, nranks);
}

// A rank's input: block b repeats the rank's values, starting with value number b, so that blocks differ.
void fill_input(const comm::Call& call, int rank, int nranks, std::span<std::byte> input) {
  const comm::Blocks blocks = bench_blocks(call, rank, nranks);
  for (std::uint64_t block = 0; block < blocks.in; ++block)
    repeat(values_of(call.type, rank, block), input.subspan(block * call.block_bytes(), call.block_bytes()));
}

// Number of wrong elements in a rank's output.
std::uint64_t count_wrong(const comm::Call& call, int rank, int nranks, std::span<const std::byte> output) {
  const comm::Blocks blocks = bench_blocks(call, rank, nranks);
  std::uint64_t wrong = 0;
  for (std::uint64_t block = 0; block < blocks.out; ++block) {
    const bool scattered = call.kind == comm::Collective::kReduceScatter || call.kind == comm::Collective::kScatter ||
                           call.kind == comm::Collective::kAllToAll;
    const std::size_t first = scattered ? static_cast<std::size_t>(rank) : 0;
    const int previous = (rank + nranks - 1) % nranks;
    const int only_source = call.kind == comm::Collective::kMessage ? previous : call.root;
    const int from = blocks.out > 1 ? static_cast<int>(block) : only_source;
    const std::vector<std::byte> values =
        comm::reduces(call.kind) ? reduced(call, nranks, first) : values_of(call.type, from, first);
    wrong += differing(values, output.subspan(block * call.block_bytes(), call.block_bytes()), bytes_of(call.type));
  }
  return wrong;
}

constexpr int kPredictedCalls = 4;  // predicted back to back, like the measured calls

bool can_be_in_place(comm::Collective kind) {
  return kind != comm::Collective::kAllToAll && kind != comm::Collective::kGather &&
         kind != comm::Collective::kScatter && kind != comm::Collective::kMessage;
}

class RankBench {
 public:
  RankBench(const BenchWork& work, const ThreadRank* rank)
      : work_(work),
        comm_(rank ? Communicator::init(rank->id, rank->nranks, rank->rank, device_, work.options)
                   : Communicator::init(device_, work.options)) {
    if (work.root < 0 || work.root >= comm_.nranks())
      throw UsageError(fmt::format("-r {}: there are {} ranks", work.root, comm_.nranks()));
    if (!on_gpu_) return;
    // Each block has at least one element, so small sizes become up to one element of each rank.
    const std::uint64_t bytes = work.end + static_cast<std::uint64_t>(comm_.nranks()) * sizeof(double);
    for (Buffer& buffer : kept_) buffer = device_.alloc(bytes, MemoryKind::kDevice, "data");
    host_ = device_.alloc(bytes, MemoryKind::kPinned, "host");
  }

  std::vector<BenchRow> run(const BenchOutput& output) {
    const bool is_first = comm_.rank() == 0;
    std::vector<BenchRow> rows;
    const std::string engine = on_gpu_ ? ", carried by " + engine_of(comm_) : "";
    if (is_first) output.head(comm_.nranks(), device_.info().description + engine);
    for (double size = static_cast<double>(work_.begin); size <= static_cast<double>(work_.end);) {
      rows.push_back(one_size(static_cast<std::uint64_t>(size)));
      if (is_first) output.row(rows.back());
      size = std::max(size * work_.factor, size + 1);
    }
    return rows;
  }

 private:
  BenchRow one_size(std::uint64_t size) {
    const std::uint64_t blocks = counts_all_blocks(work_.kind) ? static_cast<std::uint64_t>(comm_.nranks()) : 1;
    BenchRow row{.call = {.kind = work_.kind, .type = work_.type, .op = work_.op, .root = work_.root},
                 .nranks = comm_.nranks()};
    row.call.elements = std::max<std::uint64_t>(size / bytes_of(work_.type) / blocks, 1);
    row.bytes = row.call.block_bytes() * blocks;
    row.apart = measure(row, false);
    if (can_be_in_place(work_.kind)) row.in_place = measure(row, true);
    if (work_.predict && comm_.rank() == 0 && comm_.nranks() > 1)
      row.predicted_us = comm::CallPredictor(comm_).us(row.call, work_.registered, work_.each ? 1 : kPredictedCalls);
    return row;
  }

  void issue(const comm::Call& call, Range to, Range from) {
    switch (call.kind) {
      case comm::Collective::kAllReduce: return comm_.all_reduce(to, from, call.type, call.op, stream_);
      case comm::Collective::kReduce: return comm_.reduce(to, from, call.type, call.op, call.root, stream_);
      case comm::Collective::kBroadcast: return comm_.broadcast(to, from, call.root, stream_);
      case comm::Collective::kAllGather: return comm_.all_gather(to, from, stream_);
      case comm::Collective::kReduceScatter: return comm_.reduce_scatter(to, from, call.type, call.op, stream_);
      case comm::Collective::kAllToAll: return comm_.all_to_all(to, from, stream_);
      case comm::Collective::kGather: return comm_.gather(to, from, call.root, stream_);
      case comm::Collective::kScatter: return comm_.scatter(to, from, call.root, stream_);
      case comm::Collective::kBarrier: return comm_.barrier(stream_);
      case comm::Collective::kMessage: break;
    }
    Group group;
    comm_.send(from, (comm_.rank() + 1) % comm_.nranks(), stream_);
    comm_.recv(to, (comm_.rank() + comm_.nranks() - 1) % comm_.nranks(), stream_);
    group.end();
  }

  // The memory of one buffer of a call: one of the three. It is freed with this object, except for `kept`.
  struct Memory {
    Buffer own;              // private memory
    SharedBuffer shared;     // memory that the other ranks can access (--registered)
    Buffer* kept = nullptr;  // on a GPU: an element of kept_
    Buffer& buffer() { return kept ? *kept : own ? own : shared.buffer(); }
  };
  Memory allocate(std::uint64_t bytes, const char* name, Buffer& kept) {
    Memory memory;
    if (on_gpu_) memory.kept = &kept;
    else if (work_.registered) memory.shared = comm_.allocate(bytes, name);
    else memory.own = device_.alloc(bytes, MemoryKind::kPinned, name);
    return memory;
  }

  // In place: the smaller of input and output is this rank's part of the larger one.
  Measured measure(const BenchRow& row, bool in_place) {
    const comm::Call& call = row.call;
    const comm::Blocks blocks = bench_blocks(call, comm_.rank(), comm_.nranks());
    const std::uint64_t block = call.block_bytes(), max_blocks = std::max(blocks.in, blocks.out);
    const auto own = static_cast<std::uint64_t>(comm_.rank());
    const auto part = [&](std::uint64_t count) { return count < max_blocks && max_blocks > 1 ? own * block : 0; };
    Memory larger_memory = allocate(std::max<std::uint64_t>(max_blocks * block, 1), "data", kept_[0]);
    Memory other_memory = allocate(std::max<std::uint64_t>(in_place ? 1 : max_blocks * block, 1), "result", kept_[1]);
    Buffer &larger = larger_memory.buffer(), &other = other_memory.buffer();
    const Range from = larger.slice(in_place ? part(blocks.in) : 0, std::max<std::uint64_t>(blocks.in, 1) * block);
    const Range to = in_place ? larger.slice(part(blocks.out), std::max<std::uint64_t>(blocks.out, 1) * block)
                              : other.slice(0, std::max<std::uint64_t>(blocks.out, 1) * block);
    Measured result;
    fill(call, larger, from);
    issue(call, to, from);
    stream_.sync();
    result.wrong = wrong_in(call, in_place ? larger : other, to);
    for (int i = 0; i < work_.warmup; ++i) issue(call, to, from);
    comm_.barrier(stream_);
    stream_.sync();
    const std::int64_t begun = base::now_ns();
    for (int i = 0; i < work_.iterations; ++i) {
      issue(call, to, from);
      if (work_.each) stream_.sync();
    }
    stream_.sync();
    result.us = static_cast<double>(base::now_ns() - begun) / 1e3 / work_.iterations;
    result = over_ranks(result);
    result.algorithm_gbs = static_cast<double>(row.bytes) / result.us / 1e3;
    result.bus_gbs = result.algorithm_gbs * bus_share(call.kind, comm_.nranks());
    return result;
  }

  void fill(const comm::Call& call, Buffer& buffer, Range from) {
    {
      const HostView<std::byte> view = (on_gpu_ ? host_ : buffer).host_write<std::byte>();
      fill_input(call, comm_.rank(), comm_.nranks(), view.span().subspan(from.offset, from.bytes));
    }
    if (!on_gpu_) return;
    stream_.copy(buffer.slice(from.offset, from.bytes), host_.slice(from.offset, from.bytes));
    stream_.sync();
  }
  std::uint64_t wrong_in(const comm::Call& call, const Buffer& buffer, Range to) {
    if (on_gpu_) {
      stream_.copy(host_.slice(to.offset, to.bytes), buffer.slice(to.offset, to.bytes));
      stream_.sync();
    }
    const HostView<const std::byte> view = (on_gpu_ ? host_ : buffer).host_read<std::byte>();
    return count_wrong(call, comm_.rank(), comm_.nranks(), view.span().subspan(to.offset, to.bytes));
  }

  // The slowest rank's time, and the sum of the wrong elements of all ranks.
  Measured over_ranks(const Measured& own) {
    *time_.host_write<double>().begin() = own.us;
    *wrong_.host_write<std::uint64_t>().begin() = own.wrong;
    comm_.all_reduce(time_, time_, DataType::kF64, ReduceOp::kMax, stream_);
    comm_.all_reduce(wrong_, wrong_, DataType::kU64, ReduceOp::kSum, stream_);
    stream_.sync();
    return {.us = time_.host_read<double>()[0], .wrong = wrong_.host_read<std::uint64_t>()[0]};
  }

  const BenchWork work_;
  const Device device_ = Device::open(work_.device);
  const bool on_gpu_ = work_.device.starts_with("cuda");
  // On a GPU all memory is allocated before the first call and freed after the last: freeing waits for running kernels,
  // and the kernel of another rank of this process may wait for this rank. The legacy stream is not
  // used, for the same reason: its work waits for kernels in other streams.
  Buffer time_ = device_.alloc(8, MemoryKind::kPinned), wrong_ = device_.alloc(8, MemoryKind::kPinned);
  Buffer kept_[2], host_;
  const Stream stream_ = device_.stream(StreamFlags::kNonBlocking);
  Communicator comm_;
};

}  // namespace

std::string BenchRow::op() const { return comm::reduces(call.kind) ? reduce_op_name(call.op) : "none"; }
std::string BenchRow::root() const { return comm::has_root(call.kind) ? std::to_string(call.root) : "-1"; }

std::vector<BenchRow> measure_sizes(const BenchWork& work, const BenchOutput& output, const ThreadRank* rank) {
  return RankBench(work, rank).run(output);
}

}  // namespace slip::cli
