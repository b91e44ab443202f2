// The kernels of collectives and messages as CudaRanks launches them, their parameters, and the memory through which
// ranks on GPUs synchronise. Host code and kernels share it.
//
// RankControl is device memory of one rank: peers post their calls there. RankPage is pinned host memory that all ranks
// share: the host can release a stream that waits there, and reads the progress of each rank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "slip/data_type.hpp"

namespace slip::comm {

inline constexpr int kMaxGpuRanks = 32;
inline constexpr int kMaxBlocks = 256;  // of one kernel that synchronises with its peers
inline constexpr int kThreads = 512;    // of each block

// A rank posts it when it joins a call. The addresses are valid in the reader's process.
struct CallPost {
  std::uint64_t input = 0, output = 0;
  std::uint64_t elements = 0, rest = 0;  // the signature without its number
  std::uint64_t scale = 0;               // the bytes of this rank's factor
  std::uint64_t mapped_by = 0;           // bit r: rank r can access the buffers; see choose_mover()
};

// Written by one block of a peer. `flag` counts: 2k + 1 means that the block has joined its call k (from 0), 2k + 2
// that it no longer accesses this rank's buffers. The post belongs to the call of the flag. One slot suffices: the peer
// joins its next call only after this rank's block has left the call, and this rank's block has read the post by then.
struct alignas(64) MeetingSlot {
  CallPost post;
  std::uint32_t flag = 0;
};
static_assert(sizeof(MeetingSlot) == 64);

// One message that a peer sends. `posted` and `taken` count messages, per block of the pair.
struct alignas(32) MessageSlot {
  std::uint64_t address = 0, bytes = 0;
  std::uint32_t posted = 0;  // written by the sender in the receiver's memory
  std::uint32_t taken = 0;   // written by the receiver in the sender's memory
};

inline constexpr int kMessageBlocks = 64;  // the maximum number of parts of one message

// The first bytes of a rank's control memory. Arrays follow, see ControlLayout.
struct RankControl {
  std::uint32_t stop = 0;   // the communicator has failed: every wait ends
  std::uint32_t calls = 0;  // finished by this rank's kernels; the leader counts for all ranks
  std::uint32_t collectives = 0;
  std::uint32_t reported = 0;     // a mismatch was reported
  std::uint32_t noted = 0;        // the last call whose begin was written to RankPage::begun
  std::uint32_t blocks_done = 0;  // of the running message kernel, without block 0
  std::uint32_t unused[10] = {};
  std::uint64_t peers[kMaxGpuRanks] = {};  // the control memory of each rank, as an address of this process
  // By rank: the number of collectives that the rank has reached. Written by its block 0 or its waiting kernel.
  std::uint32_t arrived[kMaxGpuRanks] = {};
  std::uint32_t calls_of_block[kMaxBlocks] = {};
  CallPost posts[kMaxGpuRanks] = {};  // by rank: used only by the leader of ranks that are time-sliced
  std::uint32_t sent[kMaxGpuRanks][kMessageBlocks] = {}, received[kMaxGpuRanks][kMessageBlocks] = {};
  MessageSlot messages[kMaxGpuRanks][kMessageBlocks] = {};  // by the other rank
};

// Slots follow the control block: slot(block, rank).
struct ControlLayout {
  static constexpr std::size_t kSlots = (sizeof(RankControl) + 63) / 64 * 64;
  static constexpr std::size_t bytes(int nranks) {
    return kSlots + sizeof(MeetingSlot) * kMaxBlocks * static_cast<std::size_t>(nranks);
  }
};

// Pinned host memory of one rank, in the segment that all ranks map.
struct alignas(64) RankPage {
  // Time-sliced ranks. `arrived`: this rank's stream has joined a call; the leader resets it. `done`: the leader has
  // moved the data; this rank resets it. Values 0 and 1, so that a captured call can be replayed.
  std::uint32_t arrived;
  std::uint32_t unused0[15];
  std::uint32_t done;
  std::uint32_t unused1[15];
  // Progress, written by kernels: the numbers of kernels that have begun and finished, and of collectives begun.
  // Kernels that run together write it only if they wait long, because a write to host memory takes about a
  // microsecond.
  std::uint32_t begun;
  std::uint32_t collectives;
  std::uint32_t counted;  // a copy of RankControl::calls; the watch thread renews it every few looks
  std::uint32_t unused2[13];
  std::uint32_t finished;
  std::uint32_t unused3[15];
  // A kernel found another call on a peer. `state` is written last.
  std::uint32_t mismatch_state;
  std::uint32_t mismatch_rank;
  std::uint64_t mismatch_own[2], mismatch_other[2];
  std::uint64_t unused4[3];
};
static_assert(sizeof(RankPage) == 5 * 64);

// The mailbox of time-sliced ranks for messages from one rank to another, in pinned host memory. Of the two ranks, the
// worker copies the data in its kernel, and the other one offers its buffer. The box has one message at a time. Stream
// memory operations write it, with values that are the same each time, so that a captured message can be replayed.
struct alignas(64) MessageBox {
  std::uint64_t offered;   // bytes + 1 of the buffer that is offered; the worker sets it to 0
  std::uint64_t expected;  // bytes + 1 of the message for which the worker's stream waits; 0: it does not wait
  std::uint32_t copied;    // the number of the last message copied, as the worker's host counts
  std::uint32_t unused0[11];
  std::uint32_t in_use;  // 1: from the offer until the worker has copied
  std::uint32_t unused1[15];
};
static_assert(sizeof(MessageBox) == 2 * 64);

// A location in the buffers of a call: bit 63 set: an output; bits 48 to 62: the rank; the rest: the offset in bytes.
using DeviceLocation = std::uint64_t;
inline constexpr DeviceLocation kOutputBit = std::uint64_t{1} << 63;
inline constexpr int kRankShift = 48;
inline constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kRankShift) - 1;

// One primitive of a program (comm/plan/primitive.hpp): copies or reduces `bytes` from `sources` locations to `targets`
// locations.
struct DeviceStep {
  std::uint64_t bytes = 0;
  std::uint16_t targets = 0, sources = 0;
  std::uint16_t first = 0;  // index of the first target in the locations; the sources follow the targets
};

inline constexpr std::size_t kInlineProgram = 512;  // bytes of a program that fits into the kernel's parameters

enum class MeetingMode : std::uint32_t {
  kTogether,  // the kernels of all ranks run at the same time and synchronise by flags in device memory
  kLeader,    // one kernel moves the data of all ranks; stream memory operations order it
};

// The parameters of the kernel of one call.
struct CallParameters {
  RankControl* control = nullptr;
  RankPage* pages = nullptr;  // of all ranks, by rank
  MeetingMode mode = MeetingMode::kTogether;
  std::int32_t rank = 0, nranks = 0;
  std::uint32_t op = 0;                                                 // ReduceOp
  std::uint64_t divisor = 1;                                            // of an average
  CallPost own;                                                         // without addresses
  std::uint64_t inputs[kMaxGpuRanks] = {}, outputs[kMaxGpuRanks] = {};  // of this rank, as addresses of each reader
  std::uint32_t steps = 0;
  const std::byte* program = nullptr;  // device memory; null: `inline_program`
  alignas(8) std::byte inline_program[kInlineProgram] = {};
};

// The sends and receives of one rank, as one kernel. Parts of a message go to different blocks.
struct DeviceMessage {
  std::uint64_t address = 0;  // of this rank's buffer, as an address of the process whose kernel copies
  std::uint64_t bytes = 0;
  std::uint16_t rank = 0;
  std::uint16_t sends = 0;
  std::uint16_t round = 0;  // the number of earlier messages of the same direction with the same rank in this kernel
  std::uint16_t parts = 0;
};
// Time-sliced ranks: the part of RankControl::messages where a rank offers a buffer to the worker.
inline constexpr int kSendOffer = 0, kReceiveOffer = 1;
inline constexpr int kMaxKernelMessages = 64;

struct MessageParameters {
  RankControl* control = nullptr;
  RankPage* pages = nullptr;
  MeetingMode mode = MeetingMode::kTogether;
  std::int32_t rank = 0;
  std::uint32_t messages = 0, rounds = 0;
  DeviceMessage list[kMaxKernelMessages] = {};
};

using CallKernel = void (*)(CallParameters);

// The kernel that reduces values of this type; null: they cannot be reduced.
CallKernel integer_kernel(DataType type);
CallKernel float_kernel(DataType type);
CallKernel small_float_kernel(DataType type);
CallKernel reduce_kernel_of(DataType type);
// The kernel of collectives that only move data.
CallKernel copy_kernel();

// Loads all kernels into the current context. With lazy loading, the first launch could wait until the GPU is idle. It
// would then wait for a kernel that itself waits for this rank: a deadlock.
cudaError_t load_kernels();

cudaError_t launch(CallKernel kernel, const CallParameters& parameters, int blocks, cudaStream_t stream);
// A kernel of one warp that ends when all ranks have reached the collective of these parameters.
cudaError_t launch_arrival(const CallParameters& parameters, cudaStream_t stream);
cudaError_t launch_messages(const MessageParameters& parameters, int blocks, cudaStream_t stream);

}  // namespace slip::comm
