// Sends and receives of CudaRanks. A kernel of the receiver copies from the sender's buffer. Time-sliced ranks use
// SlicedMessages.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "backend/cuda/check.hpp"
#include "comm/cuda/cuda_ranks.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

static_assert(kMessageRest >> 60 == static_cast<std::uint64_t>(Collective::kMessage));

// Sender and receiver divide a message into the same parts, because both know its size.
std::uint16_t parts_of(std::uint64_t bytes) {
  constexpr std::uint64_t kPartBytes = 128 << 10;
  return static_cast<std::uint16_t>(
      std::clamp<std::uint64_t>((bytes + kPartBytes - 1) / kPartBytes, 1, kMaxMessageParts));
}

}  // namespace

std::uint64_t CudaRanks::start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                                        runtime::StreamState& stream, Submit& submit) {
  order_.require_stream_of_device(stream, op.here);
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
    // Whether a kernel of the other rank accesses this buffer.
    const bool other_copies = sliced_ ? !sliced_->copies(message.rank, message.out) : message.out;
    if (other_copies && message.bytes > 0) {
      const PeerMemory::Found own = peers_->find(message.data);
      if (!own.bases && own.unmappable_by < 0)
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("{}: the buffer is memory that other processes cannot map (from a memory pool or the "
                                "host): use device memory of cudaMalloc",
                                message.out ? "send" : "receive"),
                    op.here);
      Placed placed;
      place(message.data, message.bytes, false, 0, placed, {.ranks = std::uint64_t{1} << message.rank}, op.here);
      one.address = placed.addresses[message.rank];
    } else {
      one.address = reinterpret_cast<std::uint64_t>(message.data);
    }
    launch.rounds = std::max<std::uint32_t>(launch.rounds, one.round + 1U);
    launch.messages.push_back(one);
  }
  const std::uint64_t position =
      order_.enqueue(op, stream, submit, [&](cudaStream_t native) { put_messages(launch, native); });
  watch_.note({ticket, Signature::of_message(bytes, 0), mode_ == MeetingMode::kTogether, order_.last_use()}, stream,
              position);
  return position;
}

void CudaRanks::launch_message_kernel(std::span<const DeviceMessage> messages, std::uint32_t rounds,
                                      cudaStream_t stream) {
  MessageParameters p;
  p.control = controls_.own->control;
  p.pages = shared_.pages();
  p.mode = mode_;
  p.rank = rank_;
  p.messages = static_cast<std::uint32_t>(messages.size());
  p.rounds = rounds;
  int parts[2] = {};  // of all receives, of all sends: the same blocks handle both
  for (const DeviceMessage& message : messages) parts[message.sends] += message.parts;
  std::copy(messages.begin(), messages.end(), p.list);
  const int blocks = std::clamp(std::max(parts[0], parts[1]), 1, launch_.max_blocks);
  backend::check(comm::launch_messages(p, blocks, stream), "cudaLaunchKernel", gpu_);
}

// If the messages do not fit into one kernel, each round has a kernel of its own. A round has at most one message in
// each direction with each rank, so it always fits.
void CudaRanks::put_messages(const MessageLaunch& launch, cudaStream_t stream) {
  static_assert(2 * kMaxGpuRanks <= kMaxKernelMessages);
  if (!sliced_ && launch.messages.size() <= kMaxKernelMessages)
    return launch_message_kernel(launch.messages, launch.rounds, stream);
  for (std::uint32_t index = 0; index < launch.rounds; ++index) {
    std::vector<DeviceMessage> round;
    for (DeviceMessage message : launch.messages) {
      if (message.round != index) continue;
      message.round = 0;
      round.push_back(message);
    }
    if (sliced_)
      sliced_->put_round(round, stream,
                         [&](std::span<const DeviceMessage> copied) { launch_message_kernel(copied, 1, stream); });
    else launch_message_kernel(round, 1, stream);
  }
}

// --- time-sliced ranks ---

SlicedMessages::SlicedMessages(Setup setup) : setup_(std::move(setup)), copied_(setup_.controls.size()) {}

const MessageBox& SlicedMessages::box(const DeviceMessage& message) const {
  return message.sends != 0 ? setup_.shared->box(setup_.rank, message.rank)
                            : setup_.shared->box(message.rank, setup_.rank);
}

void SlicedMessages::put_round(std::span<const DeviceMessage> round, cudaStream_t stream,
                               const LaunchKernel& launch_kernel) {
  std::vector<DeviceMessage> copied;  // by this rank's kernel
  // `offers` wait for nothing. `waits`: until the other rank has offered its buffer. `ends`: until the other rank's
  // kernel has copied.
  std::vector<MemoryOperation> offers, waits, ends;
  for (const DeviceMessage& message : round) {
    const MessageBox& box = this->box(message);
    if (copies(message.rank, message.sends != 0)) {
      offers.push_back(write_64(&box.expected, message.bytes + 1));
      waits.push_back(wait_for_64(&box.offered, message.bytes + 1));
      waits.push_back(write_64(&box.expected, 0));
      waits.push_back(write_64(&box.offered, 0));
      copied.push_back(message);
    } else {
      const MessageSlot& there =
          setup_.controls[message.rank]->messages[setup_.rank][message.sends != 0 ? kSendOffer : kReceiveOffer];
      offers.push_back(write_64(&there.address, message.address));
      offers.push_back(write_64(&there.bytes, message.bytes));
      offers.push_back(write_32(&box.in_use, 1));
      offers.push_back(write_64(&box.offered, message.bytes + 1));
      ends.push_back(wait_for_32(&box.in_use, 0));
    }
  }
  offers.insert(offers.end(), waits.begin(), waits.end());
  put_memory_operations(stream, offers, setup_.gpu);
  if (!copied.empty()) {
    launch_kernel(copied);
    std::vector<MemoryOperation> done;
    for (const DeviceMessage& message : copied) {
      done.push_back(write_32(&box(message).copied, ++copied_[message.rank]));
      done.push_back(write_32(&box(message).in_use, 0));
    }
    put_memory_operations(stream, done, setup_.gpu);
  }
  put_memory_operations(stream, ends, setup_.gpu);
}

}  // namespace slip::comm
