// Pipe: messages from one rank to another of the same host, through cells in memory that both map. A message of up to
// kInHead bytes travels in the cache line that says that it is there; larger ones are copied in by the one and out by
// the other, cell by cell, so that both work at the same time. Between threads of one process only the address travels,
// and the receiver copies.
#pragma once

#include <array>
#include <atomic>

#include "comm/link.hpp"

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
  // Between threads: the sender's bytes are its own again once it has given up, and the receiver is not at them.
  alignas(64) std::atomic<bool> given_up{false};
  std::atomic<bool> reading{false};
  alignas(64) std::byte cells[kCells][kCellBytes];
};

class PipeOutlet final : public LinkEnd {
 public:
  // `memory`: zeroed at first, in use by this one sender and one receiver.
  PipeOutlet(PipeMemory& memory, bool same_process) : memory_(memory), by_address_(same_process) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;
  void attend(bool) override {}
  void close() noexcept override;

 private:
  struct Message {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0, gone = 0;
    std::uint64_t last_cell = 0;  // by address: done when it was taken
    bool signed_ = false, all_in = false;
    Signature signature;
  };
  bool has_room();
  void fill_cell(Message& message);

  PipeMemory& memory_;
  const bool by_address_;
  std::array<Message, kDepth> messages_;
  std::uint64_t in_ = 0;                  // messages that are in the pipe
  std::uint64_t filled_ = 0, taken_ = 0;  // cells; `taken_`: at least
};

class PipeInlet final : public LinkEnd {
 public:
  PipeInlet(PipeMemory& memory, int rank, int from) : memory_(memory), rank_(rank), from_(from) {}
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
  };
  void take_cell(Message& message, const PipeMemory::Head& head);
  void copy_from_sender(const Message& message, const PipeMemory::Head& head);

  PipeMemory& memory_;
  const int rank_, from_;
  std::array<Message, kDepth> messages_;
  std::uint64_t taken_ = 0;
};

}  // namespace slip
