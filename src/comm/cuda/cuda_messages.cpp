// CudaRanks: sends and receives. The receiver copies from the sender's buffer.
#include <algorithm>
#include <map>

#include "backend/cuda/check.hpp"
#include "comm/cuda/cuda_ranks.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

// Sender and receiver divide a message into the same parts, because both know its size.
std::uint16_t parts_of(std::uint64_t bytes) {
  constexpr std::uint64_t kPartBytes = 128 << 10;
  return static_cast<std::uint16_t>(
      std::clamp<std::uint64_t>((bytes + kPartBytes - 1) / kPartBytes, 1, kMessageBlocks));
}

}  // namespace

std::uint64_t CudaRanks::start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                                        runtime::StreamState& stream, Submit& submit) {
  require_stream_of_device(stream, op.here);
  const DeviceScope scope(gpu_);
  MessageLaunch launch;
  std::map<std::pair<bool, int>, std::uint16_t> counts;
  std::uint64_t bytes = 0;
  for (const UserMessage& message : messages) {
    DeviceMessage one{.bytes = message.bytes,
                      .rank = static_cast<std::uint16_t>(message.rank),
                      .sends = message.out ? std::uint16_t{1} : std::uint16_t{0},
                      .round = counts[{message.out, message.rank}]++,
                      .parts = parts_of(message.bytes)};
    bytes += message.bytes;
    if (message.out && message.bytes > 0) {
      const PeerMemory::Found own = peers_->find(message.data);
      if (!own.bases && own.unmappable_by < 0)
        throw Error(Code::kUnsupported,
                    "send: the buffer is memory that other processes cannot map (from a memory pool or the host): use "
                    "device memory of cudaMalloc",
                    op.here);
      Placed placed;
      place(message.data, message.bytes, false, 0, placed, op.here);
      one.address = placed.addresses[message.rank];
    } else {
      one.address = reinterpret_cast<std::uint64_t>(message.data);
    }
    launch.rounds = std::max<std::uint32_t>(launch.rounds, one.round + 1U);
    launch.messages.push_back(one);
  }
  order_after_last(stream, op.here);
  const std::uint64_t position =
      enqueue(op, stream, submit, [&](cudaStream_t native) { put_messages(launch, native); });
  watch_.note({ticket, Signature::of_message(bytes, 0), mode_ == MeetingMode::kTogether}, stream, position);
  return position;
}

void CudaRanks::launch_message_kernel(std::span<const DeviceMessage> messages, std::uint32_t rounds,
                                      cudaStream_t stream) {
  MessageParameters p;
  p.control = controls_.own->control;
  p.pages = shared_.pages();
  p.mode = mode_;
  p.rank = rank_;
  p.nranks = nranks_;
  p.messages = static_cast<std::uint32_t>(messages.size());
  p.rounds = rounds;
  int parts = 0;
  for (const DeviceMessage& message : messages) parts += message.parts;
  std::copy(messages.begin(), messages.end(), p.list);
  backend::check(comm::launch_messages(p, std::clamp(parts, 1, max_blocks_), stream), "cudaLaunchKernel", gpu_);
}

// If the messages do not fit into one kernel, each round has its own kernels. A round has at most one message in each
// direction with each rank, so it always fits.
void CudaRanks::put_messages(const MessageLaunch& launch, cudaStream_t stream) {
  static_assert(2 * kMaxGpuRanks <= kMaxKernelMessages);
  if (mode_ == MeetingMode::kTogether && launch.messages.size() <= kMaxKernelMessages)
    return launch_message_kernel(launch.messages, launch.rounds, stream);
  for (std::uint32_t round = 0; round < launch.rounds; ++round) put_round(launch, round, stream);
}

void CudaRanks::put_round(const MessageLaunch& launch, std::uint32_t round, cudaStream_t stream) {
  std::vector<DeviceMessage> messages;
  std::vector<MemoryOperation> before, after;
  RankPage& page = shared_.pages()[rank_];
  for (DeviceMessage message : launch.messages) {
    if (message.round != round) continue;
    message.round = 0;
    if (message.sends != 0) {
      const MessageSlot& there = controls_.all[message.rank]->messages[rank_][0];
      const MessageBox& box = shared_.box(rank_, message.rank);
      before.insert(before.begin(), {write_64(&there.address, message.address), write_64(&there.bytes, message.bytes),
                                     write_32(&box.posted, 1)});
      after.push_back(wait_for_one(&box.taken));
      after.push_back(write_32(&box.taken, 0));
    }
    messages.push_back(message);
  }
  if (mode_ == MeetingMode::kTogether) return launch_message_kernel(messages, 1, stream);
  std::erase_if(messages, [](const DeviceMessage& message) { return message.sends != 0; });
  std::vector<MemoryOperation> taken;
  for (const DeviceMessage& message : messages) {
    const MessageBox& box = shared_.box(message.rank, rank_);
    before.push_back(write_32(&page.receiving, 1));
    before.push_back(wait_for_one(&box.posted));
    before.push_back(write_32(&box.posted, 0));
    taken.push_back(write_32(&box.taken, 1));
  }
  put_memory_operations(stream, before, gpu_);
  if (!messages.empty()) {
    launch_message_kernel(messages, 1, stream);
    taken.push_back(write_32(&page.receiving, 0));
    put_memory_operations(stream, taken, gpu_);
  }
  put_memory_operations(stream, after, gpu_);
}

}  // namespace slip::comm
