// PipeOutlet and PipeInlet: the two ends of a link between ranks of one host, a ring buffer of cells in memory that
// both ranks map. There is one sender and one receiver; neither blocks. The class Links creates them.
//
// A message travels in one of three ways:
//   in the head     up to kInHead bytes, in the cache line that announces the cell.
//   in cells        the sender copies in and the receiver copies out, cell by cell, so that both work at the same time.
//   by address      the sender passes only the address. A receiver in the same process copies from there. A receiver in
//                   another process calls process_vm_readv; the sender uses this way from PipeReach::kProcesses on.
// Between processes, cells may be faster than process_vm_readv, because the kernel looks up every page. So both ends
// measure how long they copy, for each size class, and try the other way now and then. If the kernel denies the
// access, the receiver refuses the cell. The sender then passes the bytes through that cell's memory, one window (up to
// kCellBytes) after the other.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "comm/host/copy_choice.hpp"
#include "comm/link/link.hpp"

namespace slip::comm {

struct PipeMemory {
  static constexpr std::uint64_t kCells = 8, kCellBytes = 32 << 10, kInHead = 24;

  struct alignas(64) Head {
    std::atomic<std::uint64_t> number{0};  // of the cell that the head announces, from 1 on
    std::uint32_t bytes = 0;
    bool by_address = false;  // `data` holds an Address
    bool is_signed = false;   // a message with a signature begins here
    Signature signature;
    std::byte data[kInHead] = {};
    std::uint32_t copy_ticks = 0;  // how long the sender copied into the cell, if the message is measured
  };
  static_assert(sizeof(Head) == 64);
  struct Address {
    const std::byte* at = nullptr;  // in the sender's memory
    std::uint64_t bytes = 0;        // of the message
  };
  static_assert(sizeof(Address) <= kInHead);

  Head heads[kCells];
  // The receiver writes the next five members; they share a cache line.
  alignas(64) std::atomic<std::uint64_t> taken{0};  // cells that the receiver has read
  std::atomic<std::uint64_t> refused{0};            // the last cell whose address the receiver could not read
  std::atomic<std::uint64_t> windows_taken{0};
  std::atomic<std::uint32_t> cells_are_quicker{0};  // a hint for the sender: one bit for each size class
  std::atomic<bool> reading{false};                 // the receiver is reading the sender's memory at this moment
  // The sender writes the next two members.
  alignas(64) std::atomic<std::uint64_t> windows_filled{0};
  std::atomic<bool> given_up{false};  // the call failed: the receiver must not read the sender's memory any more
  alignas(64) std::byte cells[kCells][kCellBytes];
};

// The smallest message, in bytes, that may travel by address: between threads, between processes, or never.
struct PipeReach {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  // On a Xeon of 2.1 GHz the kernel reads 8 KiB in 0.8 us. The two copies take 2.2 us there, because the cache lines of
  // a cell move to and fro between the cores. With 4 KiB the sender's wait for the reader took longer than the copies.
  static constexpr std::uint64_t kThreads = PipeMemory::kInHead + 1, kProcesses = 8 << 10;

  // Messages between processes are measured by powers of two; the last class has no upper bound.
  static constexpr std::size_t kClasses = 10;
  static std::size_t class_of(std::uint64_t bytes) {
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(bytes / kProcesses)), kClasses - 1);
  }
};

class PipeOutlet final : public LinkEnd {
 public:
  // `memory`: zeroed at first, used by one sender and one receiver only. `min_address_bytes`: see PipeReach.
  PipeOutlet(PipeMemory& memory, std::uint64_t min_address_bytes)
      : memory_(memory), min_address_bytes_(min_address_bytes) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;
  void close() noexcept override;

 private:
  struct Message {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0, passed = 0;  // passed: bytes that are in cells, or whose address was passed
    std::uint64_t last_cell = 0;          // by address: the message is done when the receiver has taken this cell
    std::uint64_t in_windows = 0;         // bytes passed in windows, after the receiver refused the address
    bool is_signed = false, all_in = false;
    Signature signature;
  };
  bool has_room();
  void fill_cell(Message& message);
  bool fill_window(Message& message);
  bool goes_by_address(const Message& message);

  PipeMemory& memory_;
  std::uint64_t min_address_bytes_;  // the smallest message that may travel by address
  // By size class: messages so far that were large enough to go by address.
  std::array<std::uint64_t, PipeReach::kClasses> large_{};
  std::array<Message, kDepth> messages_;
  std::uint64_t in_ = 0;                  // messages that are in the pipe completely
  std::uint64_t filled_ = 0, taken_ = 0;  // cells; `taken_` may lag behind memory_.taken
};

class PipeInlet final : public LinkEnd {
 public:
  // `process`: the sender's process id, or 0 if the sender is a thread of this process.
  PipeInlet(PipeMemory& memory, int rank, int from, std::int32_t process)
      : memory_(memory), rank_(rank), from_(from), process_(process) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;

 private:
  struct Message {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0, received = 0;  // received: bytes so far
    bool is_signed = false;
    Signature signature;
    std::uint64_t copy_ticks = 0;  // of both ends, in cells
  };
  bool take_cell(Message& message, const PipeMemory::Head& head);
  [[noreturn]] void fail_length(const Message& message, std::uint64_t bytes) const;
  bool take_address(Message& message, const PipeMemory::Head& head);
  bool take_window(Message& message);
  enum class Way { kCells, kAddress };
  void note_copy(Way way, std::uint64_t ticks, std::uint64_t bytes);

  PipeMemory& memory_;
  const int rank_, from_;
  const std::int32_t process_;
  std::array<Message, kDepth> messages_;
  std::uint64_t taken_ = 0;
  bool refused_ = false;                            // this end has refused the next cell
  std::array<Trials, PipeReach::kClasses> trials_;  // by size class
};

}  // namespace slip::comm
