// The kernel of a reducing collective for one data type. The .cu files instantiate it.
#pragma once

#include "comm/cuda/cuda_arithmetic.hpp"
#include "comm/cuda/cuda_copy.hpp"
#include "comm/cuda/cuda_kernels.hpp"
#include "comm/cuda/cuda_meeting.hpp"
#include "slip/reduction.hpp"

namespace slip::comm {

template <class Element>
union Pack {
  static constexpr int kCount = 16 / sizeof(typename Element::Stored);
  uint4 all;
  typename Element::Stored one[kCount];
};

template <class Stored>
struct Single {
  Stored one[1];
};

// Vectors of each source that a thread loads before it adds. On an H200 with two ranks 4 were not faster (64 and 256
// MiB), and need more registers.
constexpr int kVectorsInFlight = 2;

// How a call reduces: Op combines two values; each source may be scaled before, and the result divided after.
enum class Extra { kNone, kScale, kDivide };

template <class Element, class Op, Extra kExtra>
class Reducer {
 public:
  using Stored = typename Element::Stored;
  __device__ Reducer(const CallParameters& p, const BlockState& state, const DeviceStep& step)
      : state_(state), targets_(step.targets), sources_(step.sources), divisor_(p.divisor) {}

  __device__ void run(std::uint64_t bytes, BlockShare share) const {
    const std::uint64_t shift = state_.targets[0] % 16;
    bool same = true;
    for (int i = 0; i < targets_; ++i) same = same && state_.targets[i] % 16 == shift;
    for (int i = 0; i < sources_; ++i) same = same && state_.sources[i] % 16 == shift;
    const std::uint64_t before = (16 - shift) % 16;
    const std::uint64_t head = !same || before > bytes ? bytes : before;
    const std::uint64_t vectors = (bytes - head) / 16, tail = head + vectors * 16;
    loop<Pack<Element>, kVectorsInFlight>(head, vectors, share);
    // The elements before and after the vectors, in one loop: two calls would be inlined and compiled twice.
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
      const std::uint64_t count = (end == 0 ? head : bytes - tail) / sizeof(Stored);
      if (count > 0) loop<Single<Stored>, 4>(end == 0 ? 0 : tail, count, share);
    }
  }

 private:
  template <class Unit, int kInFlight>
  __device__ void loop(std::uint64_t offset, std::uint64_t count, BlockShare share) const {
    for_each_tile<kInFlight>(
        count, share, [&](std::uint64_t first) { reduce<Unit, kInFlight>(offset, first); },
        [&](std::uint64_t i) { reduce<Unit, 1>(offset, i); });
  }

  template <class Unit, int kInFlight>
  __device__ void reduce(std::uint64_t offset, std::uint64_t index) const {
    Unit sum[kInFlight];
    load<Unit, kInFlight>(0, offset, index, sum);
    for (int source = 1; source < sources_; ++source) {
      Unit next[kInFlight];
      load<Unit, kInFlight>(source, offset, index, next);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
#pragma unroll
        for (int e = 0; e < static_cast<int>(sizeof(Unit) / sizeof(Stored)); ++e)
          sum[k].one[e] = Op::template of<Element>(sum[k].one[e], next[k].one[e]);
      }
    }
    if constexpr (kExtra == Extra::kDivide) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
#pragma unroll
        for (int e = 0; e < static_cast<int>(sizeof(Unit) / sizeof(Stored)); ++e)
          sum[k].one[e] = Element::divide(sum[k].one[e], divisor_);
      }
    }
    for (int target = 0; target < targets_; ++target) {
      auto* const to = reinterpret_cast<Unit*>(state_.targets[target] + offset);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if constexpr (sizeof(Unit) == 16) __stcs(&to[index + k * kThreads].all, sum[k].all);
        else to[index + k * kThreads] = sum[k];
      }
    }
  }

  template <class Unit, int kInFlight>
  __device__ void load(int source, std::uint64_t offset, std::uint64_t index, Unit (&into)[kInFlight]) const {
    const auto* const from = reinterpret_cast<const Unit*>(state_.sources[source] + offset);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      // Plain loads: on an H200 they are 1.5 % faster than __ldcs for 64 and 256 MiB.
      if constexpr (sizeof(Unit) == 16) into[k].all = from[index + k * kThreads].all;
      else into[k] = from[index + k * kThreads];
    }
    if constexpr (kExtra == Extra::kScale) {
      const auto factor = static_cast<Stored>(state_.source_scales[source]);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
#pragma unroll
        for (int e = 0; e < static_cast<int>(sizeof(Unit) / sizeof(Stored)); ++e)
          into[k].one[e] = ProductOf::template of<Element>(into[k].one[e], factor);
      }
    }
  }

  const BlockState& state_;
  const int targets_, sources_;
  const std::uint64_t divisor_;
};

template <class Element, class Op, Extra kExtra = Extra::kNone>
__device__ void reduce_steps(const CallParameters& p, BlockState& state) {
  const std::byte* const program = p.program ? p.program : p.inline_program;
  const auto* const steps = reinterpret_cast<const DeviceStep*>(program);
  const auto* const locations = reinterpret_cast<const DeviceLocation*>(steps + p.steps);
  for (std::uint32_t i = 0; i < p.steps; ++i) {
    const DeviceStep step = steps[i];
    bind_step(step, locations, state);
    Reducer<Element, Op, kExtra>(p, state, step).run(step.bytes, {blockIdx.x, gridDim.x});
  }
}

// Two blocks fit on a multiprocessor, so that the kernels of several ranks run on one GPU at the same time.
template <class Element>
__global__ void __launch_bounds__(kThreads, 2) reduce_kernel(const __grid_constant__ CallParameters p) {
  __shared__ BlockState state;
  if (join_call(p, state)) {
    switch (static_cast<ReduceOp>(p.op)) {
      case ReduceOp::kSum: reduce_steps<Element, SumOf>(p, state); break;
      case ReduceOp::kProd: reduce_steps<Element, ProductOf>(p, state); break;
      case ReduceOp::kMin: reduce_steps<Element, MinOf>(p, state); break;
      case ReduceOp::kMax: reduce_steps<Element, MaxOf>(p, state); break;
      case ReduceOp::kAvg: reduce_steps<Element, SumOf, Extra::kDivide>(p, state); break;
      case ReduceOp::kPreMulSum: reduce_steps<Element, SumOf, Extra::kScale>(p, state); break;
    }
  }
  leave_call(p, state);
}

}  // namespace slip::comm
