// The kernels of collectives and messages as CudaRanks launches them, their parameters, and the memory through which
// ranks on GPUs synchronise. Host code and kernels share it.
//
// RankControl is device memory of one rank: peers post their calls there. RankPage is pinned host memory that all ranks
// share: the host can release a stream that waits there, and reads the progress of each rank.
//
// "Time-sliced ranks" below: ranks whose processes share a GPU without MPS (MeetingMode::kLeader).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "slip/data_type.hpp"

namespace slip::comm {

inline constexpr int kMaxGpuRanks = 32;
inline constexpr int kMaxBlocks = 256;  // of one kernel that synchronises with its peers
inline constexpr int kThreads = 512;    // of each block

// What a rank posts to each peer when it joins a call. The addresses are valid in the peer's process.
struct CallPost {
  std::uint64_t input = 0, output = 0;
  std::uint64_t elements = 0, rest = 0;  // of comm::Signature, without the call's number
  std::uint64_t scale = 0;               // this rank's factor of ReduceOp::kPreMulSum, as raw bytes
  std::uint64_t mapped_by = 0;           // bit r: rank r can access the buffers; see choose_mover() in cuda_meeting.hpp
};

// Written by one block of a peer. `flag` counts: 2k + 1 means that the block has joined its call k (from 0), 2k + 2
// that it no longer accesses this rank's buffers. The post belongs to the call of the flag. One slot suffices: the peer
// joins its next call only after this rank's block has left the call, and this rank's block has read the post by then.
struct alignas(64) MeetingSlot {
  CallPost post;
  std::uint32_t flag = 0;
};
static_assert(sizeof(MeetingSlot) == 64);

// A slot for one part of the messages between two ranks, in the memory of one of them. `taken` is about messages that
// this rank sends to the other rank; the rest is about messages from the other rank. The counts include all messages
// with this part so far. Address and size are those of the whole message.
struct alignas(32) MessageSlot {
  std::uint64_t address = 0, bytes = 0;
  std::uint32_t posted = 0;  // written by the other rank when it sends
  std::uint32_t taken = 0;   // written by the other rank when it has copied
};

inline constexpr int kMaxMessageParts = 64;  // different blocks copy the parts of one message

// The first bytes of a rank's control memory. MeetingSlots follow, see ControlLayout.
struct RankControl {
  std::uint32_t stop = 0;         // 1: the communicator has failed, so every wait ends
  std::uint32_t calls = 0;        // finished by this rank's kernels; the leader counts for all ranks
  std::uint32_t collectives = 0;  // begun by this rank's kernels
  std::uint32_t reported = 0;     // 1: a mismatch was reported
  std::uint32_t noted = 0;        // the last call whose begin was written to RankPage::begun
  std::uint32_t blocks_done = 0;  // blocks of the running message kernel that have ended, without block 0
  std::uint32_t unused[10] = {};
  std::uint64_t peers[kMaxGpuRanks] = {};  // the control memory of each rank, as an address of this process
  // By rank: the number of collectives that the rank has reached. Written by block 0 of the rank's kernel, or by its
  // arrival kernel (see launch_arrival()).
  std::uint32_t arrived[kMaxGpuRanks] = {};
  std::uint32_t calls_of_block[kMaxBlocks] = {};  // collectives that each block has finished
  CallPost posts[kMaxGpuRanks] = {};              // by rank; only the leader of time-sliced ranks uses it
  // By the other rank and the part: the messages so far.
  std::uint32_t sent[kMaxGpuRanks][kMaxMessageParts] = {}, received[kMaxGpuRanks][kMaxMessageParts] = {};
  // By the other rank and the part. Time-sliced ranks: by the other rank and kSendOffer or kReceiveOffer.
  MessageSlot messages[kMaxGpuRanks][kMaxMessageParts] = {};
};

// Signature::rest of a message, as kernels report it.
inline constexpr std::uint64_t kMessageRest = std::uint64_t{9} << 60;

// The layout of control memory: one RankControl, then the MeetingSlots, see slot_of() in cuda_meeting.hpp.
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
  // Progress, written by kernels: `begun` and `finished` count kernels, `collectives` counts collectives begun.
  // Kernels that run together write it only if they wait long, because a write to host memory takes about a
  // microsecond.
  std::uint32_t begun;
  std::uint32_t collectives;
  std::uint32_t counted;  // RankControl::calls, which the watch thread copies here from time to time
  std::uint32_t unused2[13];
  std::uint32_t finished;
  std::uint32_t unused3[15];
  // mismatch_state is 1 after a kernel found that a peer made a different call. It is written last.
  std::uint32_t mismatch_state;
  std::uint32_t mismatch_rank;
  std::uint64_t mismatch_own[2], mismatch_other[2];
  std::uint64_t unused4[3];
};
static_assert(sizeof(RankPage) == 5 * 64);

// The mailbox of time-sliced ranks for messages from one rank to another, in pinned host memory. The lower of the two
// ranks is the worker: its kernel copies the data. The other rank offers its buffer. The box has one message at a time.
// Stream memory operations write the box. They write the same values each time, so that a captured message can be
// replayed.
struct alignas(64) MessageBox {
  std::uint64_t offered;   // bytes + 1 of the buffer that the other rank offers; the worker sets it to 0
  std::uint64_t expected;  // bytes + 1 of the message for which the worker's stream waits; 0: it does not wait
  std::uint32_t copied;    // number of the last message copied, counted when it was enqueued; shows progress only
  std::uint32_t unused0[11];
  std::uint32_t in_use;  // 1: from the offer until the worker has copied
  std::uint32_t unused1[15];
};
static_assert(sizeof(MessageBox) == 2 * 64);

// A location in the buffers of a call. Bit 63: 1 for an output, 0 for an input. Bits 48 to 62: the rank. The rest: the
// offset in bytes.
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

inline constexpr std::size_t kInlineProgram = 512;  // a program of at most this many bytes is a kernel parameter

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
  std::uint64_t inputs[kMaxGpuRanks] = {}, outputs[kMaxGpuRanks] = {};  // of this rank; by reader, valid in its process
  std::uint32_t steps = 0;
  const std::byte* program = nullptr;  // device memory; null: `inline_program`
  alignas(8) std::byte inline_program[kInlineProgram] = {};
};

// A send or a receive.
struct DeviceMessage {
  std::uint64_t address = 0;  // of this rank's buffer, as an address of the process whose kernel copies
  std::uint64_t bytes = 0;
  std::uint16_t rank = 0;   // the other rank
  std::uint16_t sends = 0;  // 1: a send; 0: a receive
  std::uint16_t round = 0;  // the number of earlier messages of the same direction with the same rank in this kernel
  std::uint16_t parts = 0;
};
// Time-sliced ranks have no parts in RankControl::messages. A rank offers a buffer to the worker at one of these
// indices: kSendOffer if it sends from the buffer, kReceiveOffer if it receives there.
inline constexpr int kSendOffer = 0, kReceiveOffer = 1;
inline constexpr int kMaxKernelMessages = 64;

// The parameters of the kernel of sends and receives of one rank. Its blocks share the parts of all messages.
struct MessageParameters {
  RankControl* control = nullptr;
  RankPage* pages = nullptr;
  MeetingMode mode = MeetingMode::kTogether;
  std::int32_t rank = 0;
  std::uint32_t messages = 0, rounds = 0;
  DeviceMessage list[kMaxKernelMessages] = {};
};

using CallKernel = void (*)(CallParameters);

// The kernel that reduces values of this type. Null: the type is not in the function's class of types.
CallKernel integer_kernel(DataType type);
CallKernel float_kernel(DataType type);
CallKernel small_float_kernel(DataType type);
CallKernel reduce_kernel_of(DataType type);  // of any class; null: the type cannot be reduced
// The kernel of collectives that only move data.
CallKernel copy_kernel();

// Loads all kernels into the current context. With lazy loading, the first launch could wait until the GPU is idle. It
// would then wait for a kernel that itself waits for this rank: a deadlock.
cudaError_t load_kernels();

cudaError_t launch(CallKernel kernel, const CallParameters& parameters, int blocks, cudaStream_t stream);
// Launches a kernel of one warp that ends when all ranks have reached the next collective of the stream.
cudaError_t launch_arrival(const CallParameters& parameters, cudaStream_t stream);
cudaError_t launch_messages(const MessageParameters& parameters, int blocks, cudaStream_t stream);

// Launches a kernel of one thread that waits until the flag is not 0, and then clears it. Load it first, see above.
cudaError_t launch_wait(std::uint32_t* flag, cudaStream_t stream);
cudaError_t load_wait_kernel();

}  // namespace slip::comm
