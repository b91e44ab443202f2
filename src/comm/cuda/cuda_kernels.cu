#include "comm/cuda/cuda_copy.hpp"
#include "comm/cuda/cuda_kernels.hpp"
#include "comm/cuda/cuda_meeting.hpp"

namespace slip::comm {
namespace {

__global__ void __launch_bounds__(kThreads, 2) move_kernel(const __grid_constant__ CallParameters p) {
  __shared__ BlockState state;
  if (join_call(p, state)) {
    const std::byte* const program = p.program ? p.program : p.inline_program;
    const auto* const steps = reinterpret_cast<const DeviceStep*>(program);
    const auto* const locations = reinterpret_cast<const DeviceLocation*>(steps + p.steps);
    for (std::uint32_t i = 0; i < p.steps; ++i) {
      const DeviceStep step = steps[i];
      bind_step(step, locations, state);
      copy_bytes(state.targets[0], state.sources[0], step.bytes, {blockIdx.x, gridDim.x});
    }
  }
  leave_call(p, state);
}

// One warp that waits until all ranks have reached this collective. If the large kernel of the collective waited
// instead, it would occupy multiprocessors that other kernels need, for instance the peer's kernels before its call.
__global__ void arrival_kernel(RankControl* control, RankPage* pages, int rank, int nranks) {
  const int other = static_cast<int>(threadIdx.x);
  if (other >= nranks || other == rank || is_stopped(*control)) return;
  const std::uint32_t collectives = control->collectives + 1;  // with the call that follows in the stream
  note_arrival(reinterpret_cast<RankControl*>(control->peers[other]), rank, collectives);
  await_flag(&control->arrived[other], collectives, *control, pages[rank], 1);
}

// --- messages ---

// The bytes of a message that one part of it copies. Parts are multiples of 128 bytes, except the last.
struct PartOfMessage {
  __device__ PartOfMessage(std::uint64_t all, int part, int parts) {
    const std::uint64_t each = ((all + parts - 1) / parts + 127) / 128 * 128;
    begin = each * part < all ? each * part : all;
    bytes = all - begin < each ? all - begin : each;
  }
  std::uint64_t begin, bytes;
};

// Runs `body(message, part)` for the parts of this round that belong to this block: the parts of all messages are dealt
// to the blocks in turn. The index of the block's next part is computed, because testing every part took 0.2 us a part.
template <class Body>
__device__ void for_each_part(const MessageParameters& p, std::uint32_t round, bool sends, const Body& body) {
  std::uint32_t before = 0;  // parts of the messages before
  for (std::uint32_t i = 0; i < p.messages; ++i) {
    const DeviceMessage& message = p.list[i];
    if (message.round != round || (message.sends != 0) != sends) continue;
    const std::uint32_t first = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x;
    for (std::uint32_t part = first; part < message.parts; part += gridDim.x) body(message, static_cast<int>(part));
    before += message.parts;
  }
}

__device__ RankControl& control_of(const MessageParameters& p, int rank) {
  return *reinterpret_cast<RankControl*>(p.control->peers[rank]);
}

__device__ void post_message(const MessageParameters& p, const DeviceMessage& message, int part) {
  if (threadIdx.x != 0) return;
  MessageSlot& there = control_of(p, message.rank).messages[p.rank][part];
  there.address = message.address;
  there.bytes = message.bytes;
  store_flag(&there.posted, p.control->sent[message.rank][part] + 1);
}

__device__ void await_taken(const MessageParameters& p, const DeviceMessage& message, int part) {
  if (threadIdx.x != 0) return;
  std::uint32_t& sent = p.control->sent[message.rank][part];
  await_flag(&p.control->messages[message.rank][part].taken, sent + 1, *p.control, p.pages[p.rank]);
  sent += 1;
}

// Copies a message that the other rank has posted, or, if ranks are time-sliced, writes one to the buffer that it has
// offered. All threads of the block call it.
__device__ void copy_message(const MessageParameters& p, const DeviceMessage& message, int part) {
  __shared__ std::uint64_t address;
  __shared__ bool good;
  const int offer = message.sends != 0 ? kReceiveOffer : kSendOffer;
  MessageSlot& here = p.control->messages[message.rank][p.mode == MeetingMode::kTogether ? part : offer];
  std::uint32_t& received = p.control->received[message.rank][part];
  __syncthreads();  // the part before has been copied
  if (threadIdx.x == 0) {
    good = p.mode == MeetingMode::kLeader ? !is_stopped(*p.control)
                                          : await_flag(&here.posted, received + 1, *p.control, p.pages[p.rank]);
    address = *static_cast<volatile std::uint64_t*>(&here.address);
    const std::uint64_t bytes = *static_cast<volatile std::uint64_t*>(&here.bytes);
    if (good && bytes != message.bytes) {
      const std::uint64_t own[2] = {message.bytes, kMessageRest}, theirs[2] = {bytes, kMessageRest};
      report_mismatch(*p.control, p.pages[p.rank], message.rank, own, theirs);
      good = false;
    }
  }
  __syncthreads();
  if (good) {
    const PartOfMessage bytes(message.bytes, part, message.parts);
    const std::uint64_t own = message.address + bytes.begin, other = address + bytes.begin;
    copy_bytes(message.sends != 0 ? other : own, message.sends != 0 ? own : other, bytes.bytes, {0, 1});
  }
  __syncthreads();  // all threads have read the sender's buffer
  if (threadIdx.x != 0 || p.mode == MeetingMode::kLeader) return;
  store_flag(&control_of(p, message.rank).messages[p.rank][part].taken, received + 1);
  received += 1;
}

// First this rank posts its sends, then it copies the messages that it receives, then it waits until its sends were
// taken. So two ranks never wait for each other, whatever the order and the number of their blocks. The i-th message of
// a pair belongs to round i on both ranks. If ranks are time-sliced, memory operations have waited before the kernel
// starts, and the kernel only copies.
__global__ void __launch_bounds__(kThreads, 2) message_kernel(const __grid_constant__ MessageParameters p) {
  const bool together = p.mode == MeetingMode::kTogether;
  for (std::uint32_t round = 0; round < p.rounds; ++round) {
    if (together)
      for_each_part(p, round, true, [&](const DeviceMessage& message, int part) { post_message(p, message, part); });
    for_each_part(p, round, false, [&](const DeviceMessage& message, int part) { copy_message(p, message, part); });
    if (together)
      for_each_part(p, round, true, [&](const DeviceMessage& message, int part) { await_taken(p, message, part); });
    else for_each_part(p, round, true, [&](const DeviceMessage& message, int part) { copy_message(p, message, part); });
  }
  if (!together) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (blockIdx.x != 0) {
    __threadfence();  // block 0 ends the call for all blocks
    atomicAdd(&p.control->blocks_done, 1U);
    return;
  }
  await_flag(&p.control->blocks_done, gridDim.x - 1, *p.control, p.pages[p.rank]);
  p.control->blocks_done = 0;
  note_finished(*p.control, p.pages[p.rank]);
}

__global__ void wait_kernel(std::uint32_t* flag) {
  while (load_flag(flag) == 0) __nanosleep(200);
  store_flag(flag, 0);
}

}  // namespace

CallKernel copy_kernel() { return move_kernel; }

CallKernel reduce_kernel_of(DataType type) {
  if (CallKernel const kernel = integer_kernel(type)) return kernel;
  if (CallKernel const kernel = float_kernel(type)) return kernel;
  return small_float_kernel(type);
}

cudaError_t load_wait_kernel() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(wait_kernel));
}

cudaError_t launch_wait(std::uint32_t* flag, cudaStream_t stream) {
  wait_kernel<<<1, 1, 0, stream>>>(flag);
  return cudaGetLastError();
}

cudaError_t load_kernels() {
  cudaFuncAttributes attributes{};
  cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(move_kernel));
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(message_kernel));
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(arrival_kernel));
  for (int type = 0; type <= static_cast<int>(DataType::kF64) && status == cudaSuccess; ++type) {
    if (CallKernel const kernel = reduce_kernel_of(static_cast<DataType>(type)))
      status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  }
  return status;
}

cudaError_t launch(CallKernel kernel, const CallParameters& parameters, int blocks, cudaStream_t stream) {
  void* arguments[] = {const_cast<CallParameters*>(&parameters)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                          arguments, 0, stream);
}

cudaError_t launch_arrival(const CallParameters& parameters, cudaStream_t stream) {
  static_assert(kMaxGpuRanks == 32, "a thread of one warp for each rank");
  arrival_kernel<<<1, kMaxGpuRanks, 0, stream>>>(parameters.control, parameters.pages, parameters.rank,
                                                 parameters.nranks);
  return cudaGetLastError();
}

cudaError_t launch_messages(const MessageParameters& parameters, int blocks, cudaStream_t stream) {
  void* arguments[] = {const_cast<MessageParameters*>(&parameters)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(message_kernel), dim3(static_cast<unsigned>(blocks)),
                          dim3(kThreads), arguments, 0, stream);
}

}  // namespace slip::comm
