// Pipe: messages from one rank to another of the same host, through cells in memory that both map. A message of up to
// kInHead bytes travels in the cache line that says that it is there; larger ones are copied in by the one and out by
// the other, cell by cell, so that both work at the same time. Between threads of one process only the address travels,
// and the receiver copies; between processes, too, if the message is large, and the kernel copies. A receiver that the
// kernel does not let do so refuses: the bytes then come through the cell that the address came with, window by window.
// The kernel looks up every page, so which way is the quicker one depends on the pages: the receiver measures both.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "comm/link/link.hpp"

namespace slip {

struct PipeMemory {
  static constexpr std::uint64_t kCells = 8, kCellBytes = 32 << 10, kInHead = 24;

  struct alignas(64) Head {
    std::atomic<std::uint64_t> number{0};  // of the cell that is in it, from 1 on
    std::uint32_t bytes = 0;
    bool by_address = false;  // `data` is where they are
    bool signed_ = false;     // the message begins here, and has a signature
    Signature signature;
    std::byte data[kInHead] = {};
  };
  static_assert(sizeof(Head) == 64);

  Head heads[kCells];
  alignas(64) std::atomic<std::uint64_t> taken{0};  // cells, by the receiver
  std::atomic<std::uint64_t> refused{0};            // the last cell whose address it could not read
  std::atomic<std::uint64_t> windows_taken{0};
  std::atomic<bool> cells_are_quicker{false};                // found by the receiver
  std::atomic<bool> reading{false};                          // it is where an address leads to
  alignas(64) std::atomic<std::uint64_t> windows_filled{0};  // by the sender
  std::atomic<bool> given_up{false};                         // its bytes are its own again, once nobody reads them
  alignas(64) std::byte cells[kCells][kCellBytes];
};

// From where on only the address of a message travels.
struct PipeReach {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  static constexpr std::uint64_t kThreads = PipeMemory::kInHead + 1, kProcesses = 128 << 10;
};

// What a byte takes by one of the two ways: the least of the last messages, for a thread that loses its core for a
// while says nothing about the way.
class PipePace {
 public:
  void note(std::uint64_t ticks, std::uint64_t bytes) {
    const double now = static_cast<double>(ticks) / static_cast<double>(bytes);
    pace_ = pace_ == 0 ? now : std::min(now, pace_ * 1.05);  // older ones count less and less
  }
  bool known() const { return pace_ != 0; }
  friend bool operator<(const PipePace& a, const PipePace& b) { return a.pace_ < b.pace_; }

 private:
  double pace_ = 0;
};

class PipeOutlet final : public LinkEnd {
 public:
  // `memory`: zeroed at first, in use by this one sender and one receiver. `by_address`: see PipeReach.
  PipeOutlet(PipeMemory& memory, std::uint64_t by_address) : memory_(memory), by_address_(by_address) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;
  void attend(bool) override {}
  void close() noexcept override;

 private:
  struct Message {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0, gone = 0;
    std::uint64_t last_cell = 0;  // by address: done when it was taken
    std::uint64_t shown = 0;      // of a message that was refused
    bool signed_ = false, all_in = false;
    Signature signature;
  };
  bool has_room();
  void fill_cell(Message& message);
  bool fill_window(Message& message);
  bool goes_by_address(const Message& message);

  PipeMemory& memory_;
  std::uint64_t by_address_;
  std::uint64_t large_ = 0;  // messages that might go by address
  std::array<Message, kDepth> messages_;
  std::uint64_t in_ = 0;                  // messages that are in the pipe
  std::uint64_t filled_ = 0, taken_ = 0;  // cells; `taken_`: at least
};

class PipeInlet final : public LinkEnd {
 public:
  // `process`: the sender's, if it is another one than this; else 0.
  PipeInlet(PipeMemory& memory, int rank, int from, std::int32_t process)
      : memory_(memory), rank_(rank), from_(from), process_(process) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;
  void attend(bool) override {}
  void close() noexcept override {}  // only drive() touches its bytes

 private:
  struct Message {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0, come = 0;
    bool signed_ = false;
    Signature signature;
    std::uint64_t began = 0;  // in ticks: its first cell was taken, if it has several
  };
  bool take_cell(Message& message, const PipeMemory::Head& head);
  bool take_address(Message& message, const PipeMemory::Head& head);
  bool take_window(Message& message);
  void note_pace(PipePace& way, std::uint64_t began, std::uint64_t bytes);

  PipeMemory& memory_;
  const int rank_, from_;
  const std::int32_t process_;
  std::array<Message, kDepth> messages_;
  std::uint64_t taken_ = 0;
  bool refused_ = false;  // the cell that comes next
  PipePace cells_, address_;
};

}  // namespace slip
