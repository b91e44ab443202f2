// CallHistory: the last collective calls that this rank has enqueued. A call's signature travels with its data, so a
// rank that only sends compares nothing. Therefore FailureCheck, after a long wait, and finalize() compare histories.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "comm/api/call.hpp"
#include "transport/bootstrap/control_server.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip {

class CallHistory {
 public:
  static constexpr std::size_t kCalls = 16;

  // Trivially copyable: ranks send it to each other as bytes.
  struct Snapshot {
    std::uint64_t count = 0;  // of all calls so far; digest: of their signatures
    std::uint64_t digest = 0;
    std::array<Signature, kCalls> last = {};  // by number modulo kCalls; number 0: not known
    const Signature* find(std::uint32_t number) const;
  };

  // One thread at a time. `number`: of the call, counted from 1. relaxed, here and in snapshot(): readers recognize an
  // entry that is being written by its `check`, as in the ledger. Every call pays for this, so it is only two
  // multiplications and five stores.
  void add(const Signature& call, std::uint64_t number) {
    Entry& entry = entries_[number % kCalls];
    const std::uint64_t check = check_of(call);
    entry.elements.store(call.elements, std::memory_order_relaxed);
    entry.rest.store(call.rest, std::memory_order_relaxed);
    entry.check.store(check, std::memory_order_relaxed);
    count_.store(number, std::memory_order_relaxed);
    // Odd factor: once two digests differ, equal calls afterwards never make them equal again.
    digest_.store((digest_.load(std::memory_order_relaxed) ^ check) * kOdd, std::memory_order_relaxed);
  }

  // Any thread, at any time. Leaves out entries that are being written.
  Snapshot snapshot() const;
  std::optional<Signature> find(std::uint32_t number) const;

 private:
  struct Entry {
    std::atomic<std::uint64_t> elements{0}, rest{0}, check{0};
  };
  static constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  // Fields of two different calls do not match one check, because `rest` holds the number of the call.
  static std::uint64_t check_of(const Signature& call) { return call.elements * kOdd + call.rest; }
  static std::optional<Signature> read(const Entry& entry);

  std::array<Entry, kCalls> entries_;
  std::atomic<std::uint64_t> count_{0}, digest_{0};
};

// The first call that both histories hold and that differs: this rank's and the other's.
std::optional<std::pair<Signature, Signature>> first_difference(const CallHistory::Snapshot& own,
                                                                const CallHistory::Snapshot& other);

// Answers questions of other ranks while the threads of this rank wait: its ledger entry and its history.
class CallMonitor final : public RankMonitor {
 public:
  explicit CallMonitor(std::shared_ptr<LedgerSlot> ledger_slot) : ledger_slot_(std::move(ledger_slot)) {}
  void look() override { ledger_slot_->look(); }
  std::vector<std::byte> answer() override;
  static std::optional<LedgerView> view_in(std::span<const std::byte> answer);
  static std::optional<CallHistory::Snapshot> history_in(std::span<const std::byte> answer);

  CallHistory history;

 private:
  const std::shared_ptr<LedgerSlot> ledger_slot_;
};

}  // namespace slip
