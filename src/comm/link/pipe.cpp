#include "comm/link/pipe.hpp"

#include <cstring>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "comm/reduce/reduce.hpp"
#include "transport/memory/segment.hpp"

namespace slip::comm {

void PipeOutlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  messages_[begun_ % kDepth] = {
      data, bytes, 0, 0, 0, signature != nullptr, false, signature ? *signature : Signature{}};
  ++begun_;
}

bool PipeOutlet::has_room() {
  if (filled_ - taken_ < PipeMemory::kCells) return true;
  taken_ = base::load_acquire(memory_.taken);  // acquire: the receiver has read the cells, so the sender may write them
  return filled_ - taken_ < PipeMemory::kCells;
}

// Messages of at least min_address_bytes_ go by address; between threads, always. Between processes, the receiver may
// have found that cells are quicker for this size class. Trials take the other way.
bool PipeOutlet::goes_by_address(const Message& message) {
  if (message.bytes < min_address_bytes_) return false;
  if (min_address_bytes_ == PipeReach::kThreads) return true;
  const std::size_t size_class = PipeReach::class_of(message.bytes);
  const std::uint32_t quicker = memory_.cells_are_quicker.load(std::memory_order_relaxed);  // relaxed: only a hint
  return (((quicker >> size_class) & 1) != 0) == Trials::tries(large_[size_class]++);
}

void PipeOutlet::fill_cell(Message& message) {
  const std::uint64_t cell = filled_ % PipeMemory::kCells;
  PipeMemory::Head& head = memory_.heads[cell];
  const std::uint64_t rest = message.bytes - message.passed;
  head.by_address = message.passed == 0 && goes_by_address(message);
  head.is_signed = message.is_signed && message.passed == 0;
  if (head.is_signed) head.signature = message.signature;
  if (head.by_address) {
    head.bytes = 0;
    const PipeMemory::Address address{message.data, message.bytes};
    std::memcpy(head.data, &address, sizeof(address));
    message.passed = message.bytes;
  } else {
    const std::uint64_t bytes = std::min(rest, PipeMemory::kCellBytes);
    head.bytes = static_cast<std::uint32_t>(bytes);
    const bool measured = message.bytes >= PipeReach::kProcesses;
    const std::uint64_t began = measured ? base::ticks() : 0;
    copy(bytes <= PipeMemory::kInHead ? head.data : memory_.cells[cell], message.data + message.passed, bytes);
    if (measured) head.copy_ticks = static_cast<std::uint32_t>(base::ticks() - began);
    message.passed += bytes;
  }
  ++filled_;
  head.number.store(filled_, std::memory_order_release);  // a receiver that sees the number sees the head and the cell
  // Fetches the cache line of the next head for writing. The receiver polled the line, so it is in that core's cache.
  __builtin_prefetch(&memory_.heads[filled_ % PipeMemory::kCells], 1);
  if (message.passed < message.bytes) return;
  message.all_in = true;
  message.last_cell = head.by_address ? filled_ : 0;
}

// Copies the next window of this message, the oldest in the pipe, if the receiver has refused its address. Later
// messages then never travel by address, because the kernel would deny the access again. Returns false if nothing was
// copied.
bool PipeOutlet::fill_window(Message& message) {
  const std::uint64_t filled = memory_.windows_filled.load(std::memory_order_relaxed);  // relaxed: this end writes it
  // acquire: windows_taken, loaded below, then counts the windows of all earlier messages.
  if (base::load_acquire(memory_.refused) != message.last_cell) return false;
  // acquire: the receiver has read the previous window, so the sender may overwrite it.
  if (message.in_windows == message.bytes || base::load_acquire(memory_.windows_taken) != filled) return false;
  min_address_bytes_ = PipeReach::kNever;
  const std::uint64_t bytes = std::min(message.bytes - message.in_windows, PipeMemory::kCellBytes);
  comm::copy(memory_.cells[(message.last_cell - 1) % PipeMemory::kCells], message.data + message.in_windows, bytes);
  message.in_windows += bytes;
  memory_.windows_filled.store(filled + 1, std::memory_order_release);  // a receiver that sees the count sees the bytes
  return true;
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
    Message& message = messages_[done_ % kDepth];
    if (message.last_cell > taken_)
      taken_ = base::load_acquire(memory_.taken);  // acquire: the receiver has read the bytes
    if (message.last_cell <= taken_) ++done_;
    else if (!fill_window(message)) break;
    moved = true;
  }
  return moved;
}

// Between threads: returns when the receiver no longer reads this rank's memory; it never reads that memory again. The
// receiver waits for no rank while it reads, so this wait is short.
void PipeOutlet::close() noexcept {
  memory_.given_up.store(true, std::memory_order_relaxed);  // relaxed: see PipeInlet::take_address()
  base::full_fence();
  // Does not wait for another process, which may have been killed while it read. Its reads do no harm here: a living
  // receiver finds given_up after them, and its call fails.
  if (min_address_bytes_ != PipeReach::kThreads) return;
  // acquire: the receiver's reads are done.
  for (base::Backoff backoff; base::load_acquire(memory_.reading); backoff.pause()) {}
}

void PipeInlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  messages_[begun_ % kDepth] = {data, bytes, 0, signature != nullptr, signature ? *signature : Signature{}, 0};
  ++begun_;
}

// `bytes`: the length of the sender's message. In cells, it is the length up to this cell: more may follow.
void PipeInlet::fail_length(const Message& message, std::uint64_t bytes) const {
  base::fail(ErrorCode::kMismatch, {}, "rank {} expected {} bytes from rank {} and got {}", rank_, message.bytes, from_,
             bytes);
}

// Returns false if bytes of this cell have not arrived yet.
bool PipeInlet::take_cell(Message& message, const PipeMemory::Head& head) {
  if (refused_) return take_window(message);
  const bool expects = message.is_signed && message.received == 0;
  if (expects && head.is_signed) require_same(rank_, message.signature, from_, head.signature);
  if (head.is_signed != expects)
    base::fail(ErrorCode::kMismatch, {},
               "rank {} and rank {} are not in the same call: all ranks of a communicator must make the "
               "same calls in the same order",
               rank_, from_);
  if (head.by_address) return take_address(message, head);
  if (head.bytes > message.bytes - message.received) fail_length(message, message.received + head.bytes);
  const std::uint64_t cell = taken_ % PipeMemory::kCells;
  const bool measured = process_ != 0 && message.bytes >= PipeReach::kProcesses;
  const std::uint64_t began = measured ? base::ticks() : 0;
  copy(message.data + message.received, head.bytes <= PipeMemory::kInHead ? head.data : memory_.cells[cell],
       head.bytes);
  message.received += head.bytes;
  if (!measured) return true;
  // The sender's time counts, too: in an exchange each rank copies its own message in and then the other one out.
  message.copy_ticks += base::ticks() - began + head.copy_ticks;
  if (message.received == message.bytes) note_copy(Way::kCells, message.copy_ticks, message.bytes);
  return true;
}

// Records how long the copies of a message took, at both ends, without the time that the ends waited.
void PipeInlet::note_copy(Way way, std::uint64_t ticks, std::uint64_t bytes) {
  const std::size_t size_class = PipeReach::class_of(bytes);
  const std::uint32_t hint = memory_.cells_are_quicker.load(std::memory_order_relaxed), bit = 1U << size_class;
  const bool is_usual = (way == Way::kCells) == ((hint & bit) != 0);
  if (trials_[size_class].note(!is_usual, static_cast<double>(ticks) / static_cast<double>(bytes)))
    memory_.cells_are_quicker.store(hint ^ bit, std::memory_order_relaxed);  // relaxed, both: only a hint
}

// A sender that has given up may have overwritten the message; between threads it may even have freed the memory.
// Store, fence, load on both sides: either the sender sees `reading` and waits in close(), or this thread sees
// `given_up`.
bool PipeInlet::take_address(Message& message, const PipeMemory::Head& head) {
  PipeMemory::Address address;
  std::memcpy(&address, head.data, sizeof(address));
  if (address.bytes != message.bytes) fail_length(message, address.bytes);
  const std::uint64_t began = base::ticks();
  memory_.reading.store(true, std::memory_order_relaxed);  // relaxed, like the next load: the fence orders them
  base::full_fence();
  bool read = false;
  if (!memory_.given_up.load(std::memory_order_relaxed)) {
    if (process_ == 0) copy(message.data, address.at, message.bytes);
    read = process_ == 0 ||
           transport::read_process(process_, reinterpret_cast<std::uint64_t>(address.at), message.data, message.bytes);
  }
  memory_.reading.store(false, std::memory_order_release);  // the reads are done before the sender sees false
  base::acquire_fence();                                    // the reads are done before the next load, too
  if (memory_.given_up.load(std::memory_order_relaxed))
    base::fail(ErrorCode::kRankLost, {},
               "rank {} gave up the message that it was sending to rank {}: its call has failed", from_, rank_);
  if (!read) {
    refused_ = true;
    // release: a sender that sees this number also sees the current windows_taken.
    memory_.refused.store(taken_ + 1, std::memory_order_release);
    return false;
  }
  if (process_ != 0) note_copy(Way::kAddress, base::ticks() - began, message.bytes);
  message.received = message.bytes;
  return true;
}

// Copies one window. Returns false if bytes of the message are missing still.
bool PipeInlet::take_window(Message& message) {
  const std::uint64_t taken = memory_.windows_taken.load(std::memory_order_relaxed);  // relaxed: this end writes it
  if (base::load_acquire(memory_.windows_filled) == taken) return false;  // acquire: the sender's bytes are visible
  const std::uint64_t bytes = std::min(message.bytes - message.received, PipeMemory::kCellBytes);
  comm::copy(message.data + message.received, memory_.cells[taken_ % PipeMemory::kCells], bytes);
  message.received += bytes;
  // release: the reads are done before the sender may write the memory again.
  memory_.windows_taken.store(taken + 1, std::memory_order_release);
  refused_ = message.received < message.bytes;
  return !refused_;
}

bool PipeInlet::drive() {
  bool moved = false;
  while (done_ < begun_) {
    const PipeMemory::Head& head = memory_.heads[taken_ % PipeMemory::kCells];
    if (base::load_acquire(head.number) != taken_ + 1) break;  // acquire: the sender's head and cell are visible
    Message& message = messages_[done_ % kDepth];
    const std::uint64_t before = message.received;
    if (!take_cell(message, head)) return moved || message.received > before;  // a window may have moved
    ++taken_;
    memory_.taken.store(taken_, std::memory_order_release);  // the reads are done before the sender writes again
    if (message.received == message.bytes) ++done_;
    moved = true;
  }
  return moved;
}

}  // namespace slip::comm
