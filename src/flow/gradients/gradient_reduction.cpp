// GradientReduction: the reduction of a bucket, and the measurement of its cost.
#include <algorithm>

#include "base/small_floats.hpp"
#include "flow/gradients/cuda_gradients.hpp"
#include "flow/gradients/gradient_gpu.hpp"
#include "flow/gradients/gradient_step.hpp"

namespace slip {
namespace {

template <class Small>
void pack(const Args& args) {
  const std::span<const float> from = args.in<float>(0);
  const std::span<Small> to = args.out<Small>(0);
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = base::from_float<Small>(from[i]);
}
template <class Small>
void unpack(const Args& args) {
  const std::span<const Small> from = args.in<Small>(0);
  const std::span<float> to = args.out<float>(0);
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = base::to_float(from[i]);
}

const Kernel kPackF16{"gradients to f16", pack<base::F16>, flow::cuda::pack_f16},
    kUnpackF16{"gradients from f16", unpack<base::F16>, flow::cuda::unpack_f16},
    kPackBf16{"gradients to bf16", pack<base::Bf16>, flow::cuda::pack_bf16},
    kUnpackBf16{"gradients from bf16", unpack<base::Bf16>, flow::cuda::unpack_bf16};

}  // namespace

const char* compression_name(Compression compression) {
  switch (compression) {
    case Compression::kNone: return "none";
    case Compression::kF16: return "f16";
    case Compression::kBF16: return "bf16";
  }
  return "unknown";
}

}  // namespace slip

namespace slip::flow {

void GradientReduction::enqueue(const GradientCall& call, Here here) const {
  if (hook_) return hook_(call);
  if (compression_ == Compression::kNone || call.type != DataType::kF32)
    return call.comm.all_reduce(call.data, call.data, call.type, ReduceOp::kAvg, call.stream, here);
  const bool half = compression_ == Compression::kF16;
  const Range small = call.scratch.slice(0, call.data.bytes / 2);
  const Cost cost{.bytes = call.data.bytes * 3 / 2};
  call.stream.launch(half ? kPackF16 : kPackBf16, {.reads = {call.data}, .writes = {small}}, cost, here);
  call.comm.all_reduce(small, small, half ? DataType::kF16 : DataType::kBF16, ReduceOp::kAvg, call.stream, here);
  call.stream.launch(half ? kUnpackF16 : kUnpackBf16, {.reads = {small}, .writes = {call.data}}, cost, here);
}

ReduceCost measure_reduction(const GradientReduction& reduction, Communicator& comm, const Device& device,
                             StreamRef stream, std::uint64_t max_bytes, Here here) {
  constexpr std::uint64_t kMin = 1024, kMax = std::uint64_t{64} << 20, kStep = 4;
  constexpr std::int64_t kLongNs = 50'000'000;  // a call that takes this long shows the rate well enough
  // Several calls in a row, as in a step. A link with a token bucket (rate limiter) sends the first bytes after an idle
  // period faster. Single small calls would seem cheaper than they are.
  constexpr int kTries = 3, kCalls = 8;
  max_bytes = std::clamp(max_bytes, kMin, kMax);
  SharedBuffer data = comm.allocate(max_bytes, "gradients: probe", here);
  SharedBuffer scratch = comm.allocate(reduction.needs_scratch() ? max_bytes : 0, "gradients: probe", here);
  Buffer took = device.alloc(sizeof(std::int64_t), MemoryKind::kPinned, "gradients: time", here);
  stream.fill(data, 0, "gradients: probe", here);
  stream.sync(here);
  meet_on_gpu(comm, device, here);
  TimedEvent begin, end;
  ReduceCost cost;
  for (std::uint64_t bytes = kMin;; bytes = std::min(bytes * kStep, max_bytes)) {
    std::int64_t min_ns = 0;
    // If the size before suggests that a call takes long, two calls are enough.
    const int calls =
        cost.known() && cost.points.back().time / 1000 * static_cast<std::int64_t>(kStep) > kLongNs / kCalls ? 2
                                                                                                             : kCalls;
    for (int i = 0; i <= kTries; ++i) {
      comm.barrier(stream, here);
      stream.sync(here);
      stream.record(begin, here);
      for (int call = 0; call < calls; ++call)
        reduction.enqueue({comm, stream, data.slice(0, bytes), DataType::kF32,
                           reduction.needs_scratch() ? scratch.slice(0, bytes) : Range{}},
                          here);
      stream.record(end, here);
      stream.sync(here);
      const std::int64_t ns = (end - begin).count() / calls;
      if (i == 1 || (i > 1 && ns < min_ns)) min_ns = ns;  // try 0 opens the connections and does not count
    }
    took.host_write<std::int64_t>()[0] = min_ns;
    comm.all_reduce(took, took, DataType::kI64, ReduceOp::kMax, stream, here);
    stream.sync(here);
    min_ns = took.host_read<std::int64_t>()[0];
    Picos time = std::max<Picos>(min_ns * 1000, 1);
    if (cost.known()) time = std::max(time, cost.points.back().time);  // more bytes never cost less
    cost.points.push_back({bytes, time});
    if (min_ns > kLongNs || bytes == max_bytes) return cost;
  }
}

}  // namespace slip::flow
