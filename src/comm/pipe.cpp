#include "comm/pipe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/sync.hpp"
#include "comm/copy.hpp"

namespace slip {

void require_same(int rank, const Signature& own, int other_rank, const Signature& other) {
  if (other == own) return;
  throw Error(Code::kMismatch,
              fmt::format("rank {} calls {}, rank {} calls {}: all ranks of a communicator must make the same calls in "
                          "the same order",
                          rank, own.text(), other_rank, other.text()),
              {});
}

void PipeOutlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  messages_[begun_ % kDepth] = {data, bytes, 0, 0, signature != nullptr, false, signature ? *signature : Signature{}};
  ++begun_;
}

bool PipeOutlet::has_room() {
  if (filled_ - taken_ < PipeMemory::kCells) return true;
  taken_ = load_acquire(memory_.taken);  // acquire: the receiver has read the cells, they may be written
  return filled_ - taken_ < PipeMemory::kCells;
}

void PipeOutlet::fill_cell(Message& message) {
  const std::uint64_t cell = filled_ % PipeMemory::kCells;
  PipeMemory::Head& head = memory_.heads[cell];
  const std::uint64_t rest = message.bytes - message.gone;
  head.by_address = by_address_ && rest > PipeMemory::kInHead;
  head.signed_ = message.signed_ && message.gone == 0;
  if (head.signed_) head.signature = message.signature;
  if (head.by_address) {
    head.bytes = 0;
    const std::byte* const at = message.data;
    std::memcpy(head.data, &at, sizeof(at));
    message.gone = message.bytes;
  } else {
    const std::uint64_t bytes = std::min(rest, PipeMemory::kCellBytes);
    head.bytes = static_cast<std::uint32_t>(bytes);
    copy(bytes <= PipeMemory::kInHead ? head.data : memory_.cells[cell], message.data + message.gone, bytes);
    message.gone += bytes;
  }
  ++filled_;
  head.number.store(filled_, std::memory_order_release);  // the head and the cell are seen by who sees the number
  if (message.gone < message.bytes) return;
  message.all_in = true;
  message.last_cell = head.by_address ? filled_ : 0;
}

bool PipeOutlet::drive() {
  bool moved = false;
  while (in_ < begun_ && has_room()) {
    Message& message = messages_[in_ % kDepth];
    fill_cell(message);
    if (message.all_in) ++in_;
    moved = true;
  }
  while (done_ < in_) {
    const std::uint64_t last = messages_[done_ % kDepth].last_cell;
    if (last > taken_) taken_ = load_acquire(memory_.taken);  // acquire: the receiver has read the bytes
    if (last > taken_) break;
    ++done_;
    moved = true;
  }
  return moved;
}

// The receiver waits for nobody while it reads, so neither does this one for long.
void PipeOutlet::close() noexcept {
  if (!by_address_) return;
  memory_.given_up.store(true, std::memory_order_relaxed);  // relaxed: see copy_from_sender()
  full_fence();
  for (int turn = 0; load_acquire(memory_.reading); ++turn) spin(turn);  // acquire: it has read what it read
}

void PipeInlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  messages_[begun_ % kDepth] = {data, bytes, 0, signature != nullptr, signature ? *signature : Signature{}};
  ++begun_;
}

void PipeInlet::take_cell(Message& message, const PipeMemory::Head& head) {
  if (message.signed_ && message.come == 0) {
    if (head.signed_) require_same(rank_, message.signature, from_, head.signature);
  }
  if (head.signed_ != (message.signed_ && message.come == 0))
    throw Error(Code::kMismatch,
                fmt::format("rank {} and rank {} are not in the same call: all ranks of a communicator must make the "
                            "same calls in the same order",
                            rank_, from_),
                {});
  if (head.by_address) {
    copy_from_sender(message, head);
    message.come = message.bytes;
    return;
  }
  const std::uint64_t cell = taken_ % PipeMemory::kCells;
  copy(message.data + message.come, head.bytes <= PipeMemory::kInHead ? head.data : memory_.cells[cell], head.bytes);
  message.come += head.bytes;
}

// Either the sender, which gives up, sees that its bytes are read, and waits; or this thread sees that it has given up.
void PipeInlet::copy_from_sender(const Message& message, const PipeMemory::Head& head) {
  memory_.reading.store(true, std::memory_order_relaxed);  // relaxed, both: the fence orders them
  full_fence();
  const bool stays = !memory_.given_up.load(std::memory_order_relaxed);
  if (stays) {
    const std::byte* at = nullptr;
    std::memcpy(&at, head.data, sizeof(at));
    copy(message.data, at, message.bytes);
  }
  memory_.reading.store(false, std::memory_order_release);  // the bytes are read before the sender goes on
  if (!stays)
    throw Error(Code::kAborted, fmt::format("rank {} gave up what it was sending to rank {}", from_, rank_), {});
}

bool PipeInlet::drive() {
  bool moved = false;
  while (done_ < begun_) {
    const PipeMemory::Head& head = memory_.heads[taken_ % PipeMemory::kCells];
    if (load_acquire(head.number) != taken_ + 1) break;  // acquire: the sender's head and cell are seen
    Message& message = messages_[done_ % kDepth];
    take_cell(message, head);
    ++taken_;
    memory_.taken.store(taken_, std::memory_order_release);  // what was read is read before it is written again
    if (message.come == message.bytes) ++done_;
    moved = true;
  }
  return moved;
}

}  // namespace slip
