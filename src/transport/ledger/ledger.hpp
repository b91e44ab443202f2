// LedgerSeat: a rank's entry in the ledger of its process, a memfd named slip-ledger that `slip ranks` finds under
// /proc, and the witness that answers for the rank while its threads are stuck.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "transport/bootstrap/witness.hpp"
#include "transport/ledger/ledger_entry.hpp"

namespace slip {

inline constexpr const char* kLedgerName = "slip-ledger";
inline constexpr std::int32_t kLedgerEntries = 512;
// Every ledger has this size: one of another size was made by another program.
inline constexpr std::size_t kLedgerBytes =
    sizeof(LedgerHeader) + static_cast<std::size_t>(kLedgerEntries) * sizeof(LedgerEntry);

class LedgerSeat final : public Witness {
 public:
  struct Who {
    std::uint64_t communicator = 0;
    int rank = 0, nranks = 1;
    std::string_view device;
  };
  // A process with more communicators than the ledger has entries, or that gets no memfd, writes where nobody looks.
  explicit LedgerSeat(const Who& who);
  ~LedgerSeat();  // the rank has left
  LedgerSeat(const LedgerSeat&) = delete;
  LedgerSeat& operator=(const LedgerSeat&) = delete;

  // Who enqueues, one at a time. relaxed, here and below: readers tie words together themselves.
  void enqueue(std::uint64_t number, std::uint64_t stream, std::uint64_t bytes) {
    entry_->streams[number % LedgerEntry::kStreams].store(stream, std::memory_order_relaxed);
    entry_->bytes.store(entry_->bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    entry_->enqueued.store(number, std::memory_order_relaxed);
  }

  // Who runs the call, one after the other. `call`: its signature.
  void begin(std::uint64_t number, std::uint64_t first, std::uint64_t second) {
    entry_->call[0].store(first, std::memory_order_relaxed);
    entry_->call[1].store(second, std::memory_order_relaxed);
    entry_->begun.store(number, std::memory_order_relaxed);
    entry_->check.store(check_of_call(number, first, second), std::memory_order_relaxed);
  }
  void end(std::uint64_t number) { entry_->ended.store(number, std::memory_order_relaxed); }
  void wait(int rank);  // has waited for long, and first of all for this one
  void wait_over() { entry_->waits_for.store(0, std::memory_order_relaxed); }

  // From any thread; the first one counts. `life`: kFailed or kAborted.
  void fail(LedgerLife life, std::string_view text);

  LedgerView view() const;
  void look() override;
  std::vector<std::byte> answer() override;

 private:
  std::shared_ptr<void> book_;  // keeps the memory
  std::unique_ptr<LedgerEntry> private_;
  LedgerEntry* entry_ = nullptr;
  const LedgerHeader* header_ = nullptr;
};

}  // namespace slip
