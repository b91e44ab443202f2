// Synchronisation between the kernels of all ranks: block b of each rank posts its call to block b of all other ranks
// and waits for their posts. So no rank needs a barrier over its whole grid. All ranks launch the same number of
// blocks. A kernel ends when each of its blocks has observed that the same block of each peer is done.
#pragma once

#include <cstdint>

#include "comm/cuda/cuda_kernels.hpp"

namespace slip::comm {

// System scope: the peer may be on another GPU, and its buffers are read after the flag.
__device__ inline std::uint32_t load_flag(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void store_flag(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline bool is_stopped(const RankControl& control) {
  return *static_cast<const volatile std::uint32_t*>(&control.stop) != 0;
}

// The host reads these counts to find calls that do not end. Only block 0 writes them. Its threads end their waits
// before thread 0 counts the call, so `begun` is never written after `finished` of the same call. `collectives`: the
// number of collectives that this rank has reached, including the present one.
__device__ inline void note_begun(RankControl& control, RankPage& page, std::uint32_t collectives) {
  control.noted = control.calls + 1;
  *static_cast<volatile std::uint32_t*>(&page.collectives) = collectives;
  *static_cast<volatile std::uint32_t*>(&page.begun) = control.calls + 1;
}
__device__ inline void note_finished(RankControl& control, RankPage& page) {
  control.calls += 1;
  if (control.noted == control.calls) *static_cast<volatile std::uint32_t*>(&page.finished) = control.calls;
}

constexpr std::uint32_t kPollsPerStop = 32;  // polls of a flag for each poll of `stop`

// A wait of this many polls, about 0.1 ms, is long: the kernel then writes its progress for the host.
constexpr std::uint32_t kLongWait = 256;

// Waits until the flag has reached `wanted`; flags are cyclic. False: the communicator has failed. `page`: of this
// rank. `ahead`: 1 if control.collectives does not count the present call yet.
__device__ inline bool await_flag(const std::uint32_t* flag, std::uint32_t wanted, RankControl& control, RankPage& page,
                                  std::uint32_t ahead = 0) {
  for (std::uint32_t polls = 1; static_cast<std::int32_t>(load_flag(flag) - wanted) < 0; ++polls) {
    if (polls % kPollsPerStop == 0 && is_stopped(control)) return false;
    if (polls == kLongWait && blockIdx.x == 0) note_begun(control, page, control.collectives + ahead);
  }
  return true;
}

// Shared memory of a block during a call.
struct BlockState {
  std::uint64_t inputs[kMaxGpuRanks], outputs[kMaxGpuRanks], scales[kMaxGpuRanks];          // by rank
  std::uint64_t sources[kMaxGpuRanks], targets[kMaxGpuRanks], source_scales[kMaxGpuRanks];  // of the current step
  RankControl* peers[kMaxGpuRanks];
  std::uint64_t mapped_by[kMaxGpuRanks];  // CallPost::mapped_by of each rank
  std::uint32_t call;                     // the number of calls that this block has finished
  std::uint32_t stopped;
  std::uint32_t incomplete;  // some rank cannot access the buffers of another
};

__device__ inline MeetingSlot& slot_of(RankControl* control, int block, int rank, int nranks) {
  auto* const slots = reinterpret_cast<MeetingSlot*>(reinterpret_cast<std::byte*>(control) + ControlLayout::kSlots);
  return slots[block * nranks + rank];
}

// Reports once per communicator that another rank made a different call. Returns when the host has made the streams
// fail and stopped the kernels. If the kernel ended earlier, a thread that waits for its stream would get no error.
__device__ inline void report_mismatch(RankControl& control, RankPage& page, int other, const std::uint64_t (&own)[2],
                                       const std::uint64_t (&theirs)[2]) {
  if (atomicExch(&control.reported, 1U) == 0) {
    page.mismatch_rank = static_cast<std::uint32_t>(other);
    for (int i = 0; i < 2; ++i) {
      page.mismatch_own[i] = own[i];
      page.mismatch_other[i] = theirs[i];
    }
    __threadfence_system();  // a host that observes the state must observe the fields above, too
    *static_cast<volatile std::uint32_t*>(&page.mismatch_state) = 1;
  }
  while (!is_stopped(control)) __nanosleep(1000);
}

// Notifies `peer` that `rank` has reached a collective. No data is published with the flag, so it needs no ordering.
__device__ inline void note_arrival(RankControl* peer, int rank, std::uint32_t collectives) {
  *static_cast<volatile std::uint32_t*>(&peer->arrived[rank]) = collectives;
}

// Thread `other` of the block reads the post of rank `other`.
__device__ inline void take_post(const CallParameters& p, const CallPost& post, int other, BlockState& state) {
  const volatile CallPost& read = post;  // volatile: a peer writes it while this kernel runs
  const std::uint64_t own[2] = {p.own.elements, p.own.rest}, theirs[2] = {read.elements, read.rest};
  if (own[0] != theirs[0] || own[1] != theirs[1]) {
    report_mismatch(*p.control, p.pages[p.rank], other, own, theirs);
    state.stopped = 1;
  }
  state.inputs[other] = read.input;
  state.outputs[other] = read.output;
  state.scales[other] = read.scale;
  state.mapped_by[other] = read.mapped_by;
  if (read.mapped_by != (std::uint64_t{1} << p.nranks) - 1) state.incomplete = 1;
}

// Chooses the rank that moves the data of all ranks. This is needed if a rank cannot access the buffers of another
// rank, because its process could not map them while its kernel waited. The chosen rank is the first one whose buffers
// are not mapped everywhere and that can access all others: only such ranks have the program of all ranks.
//
// Such a rank exists: a rank launches its kernel with incomplete mappings only if all ranks that do not wait in a
// kernel have mapped its buffers. So the last rank that launches can access all others. All ranks read the same posts,
// so they choose the same rank.
__device__ inline int choose_mover(const BlockState& state, int nranks) {
  const std::uint64_t all = (std::uint64_t{1} << nranks) - 1;
  std::uint64_t accesses_all = all;
  for (int rank = 0; rank < nranks; ++rank) accesses_all &= state.mapped_by[rank];
  for (int rank = 0; rank < nranks; ++rank) {
    if (state.mapped_by[rank] != all && (accesses_all >> rank & 1) != 0) return rank;
  }
  __trap();  // unreachable, see above; a trap is better than a wrong result
  return -1;
}

// All threads of the block call it. True: all ranks have joined the same call, `state` has their buffers, and this rank
// moves data.
__device__ inline bool join_call(const CallParameters& p, BlockState& state) {
  const int block = static_cast<int>(blockIdx.x), other = static_cast<int>(threadIdx.x);
  const bool together = p.mode == MeetingMode::kTogether;
  if (threadIdx.x == 0) {
    state.stopped = is_stopped(*p.control) ? 1 : 0;
    state.incomplete = 0;
    state.call = p.control->calls_of_block[block];
    if (block == 0) p.control->collectives += 1;
  }
  if (other < p.nranks) state.peers[other] = reinterpret_cast<RankControl*>(p.control->peers[other]);
  __syncthreads();
  if (other < p.nranks && state.stopped == 0) {
    if (other == p.rank) {
      state.inputs[other] = p.inputs[other];
      state.outputs[other] = p.outputs[other];
      state.scales[other] = p.own.scale;
      state.mapped_by[other] = p.own.mapped_by;
      if (together && p.own.mapped_by != (std::uint64_t{1} << p.nranks) - 1) state.incomplete = 1;
    } else if (!together) {
      take_post(p, p.control->posts[other], other, state);
    } else {
      MeetingSlot& there = slot_of(state.peers[other], block, p.rank, p.nranks);
      CallPost post = p.own;
      post.input = p.inputs[other];
      post.output = p.outputs[other];
      there.post = post;
      store_flag(&there.flag, 2 * state.call + 1);
      if (block == 0) note_arrival(state.peers[other], p.rank, p.control->collectives);
      const MeetingSlot& here = slot_of(p.control, block, other, p.nranks);
      if (await_flag(&here.flag, 2 * state.call + 1, *p.control, p.pages[p.rank]))
        take_post(p, here.post, other, state);
      else state.stopped = 1;
    }
  }
  __syncthreads();
  if (state.stopped != 0) return false;
  return !together || state.incomplete == 0 || choose_mover(state, p.nranks) == p.rank;
}

// All threads of the block call it, after their last access to the buffers of other ranks.
__device__ inline void leave_call(const CallParameters& p, BlockState& state) {
  const int block = static_cast<int>(blockIdx.x), other = static_cast<int>(threadIdx.x);
  __syncthreads();  // the accesses of all threads come before the flag
  if (p.mode == MeetingMode::kLeader) {
    if (block == 0 && other < p.nranks)
      *static_cast<volatile std::uint32_t*>(&p.pages[other].finished) = p.control->calls + 1;
    __syncthreads();
    if (block == 0 && threadIdx.x == 0) p.control->calls += 1;
    return;
  }
  // A stopped block posts nothing: otherwise a peer would take the flag for a call whose post is missing.
  if (other < p.nranks && other != p.rank && state.stopped == 0) {
    MeetingSlot& there = slot_of(state.peers[other], block, p.rank, p.nranks);
    store_flag(&there.flag, 2 * state.call + 2);
    const MeetingSlot& here = slot_of(p.control, block, other, p.nranks);
    await_flag(&here.flag, 2 * state.call + 2, *p.control, p.pages[p.rank]);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.control->calls_of_block[block] = state.call + 1;
  if (block == 0) note_finished(*p.control, p.pages[p.rank]);
}

// Finds the buffers of a step. All threads of the block call it.
__device__ inline void bind_step(const DeviceStep& step, const DeviceLocation* locations, BlockState& state) {
  const auto address = [&](DeviceLocation place) {
    const auto rank = static_cast<int>((place & ~kOutputBit) >> kRankShift);
    return ((place & kOutputBit) != 0 ? state.outputs : state.inputs)[rank] + (place & kOffsetMask);
  };
  __syncthreads();  // all threads have ended the step before
  const auto index = static_cast<int>(threadIdx.x);
  if (index < step.targets) state.targets[index] = address(locations[step.first + index]);
  if (index < step.sources) {
    const DeviceLocation place = locations[step.first + step.targets + index];
    state.sources[index] = address(place);
    state.source_scales[index] = state.scales[(place & ~kOutputBit) >> kRankShift];
  }
  __syncthreads();
}

}  // namespace slip::comm
