// CallHistory: the last collective calls that this rank has enqueued. A rank sends the signature of a call with the
// data, so only the receiver compares signatures. To find mismatches between other ranks, FailureCheck (after a long
// wait) and finalize() compare histories.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "comm/api/call.hpp"
#include "transport/bootstrap/bootstrap.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::comm {

class CallHistory {
 public:
  static constexpr std::size_t kCalls = 16;

  // Trivially copyable: ranks send it to each other as bytes.
  struct Snapshot {
    std::uint64_t count = 0;                  // of all calls so far
    std::uint64_t digest = 0;                 // a hash of the signatures of all calls so far
    std::array<Signature, kCalls> last = {};  // by number modulo kCalls; number 0: not known
    const Signature* find(std::uint32_t number) const {
      const Signature& found = last[number % kCalls];
      return number != 0 && found.number() == number ? &found : nullptr;
    }
  };

  // One thread at a time may call it. `number`: of the call, counted from 1. relaxed, here and in snapshot(): while an
  // entry is being written, its `check` does not match its fields, so readers ignore the entry, as in the ledger. Every
  // call executes this, so it takes only two multiplications and five stores.
  void add(const Signature& call, std::uint64_t number) {
    Entry& entry = entries_[number % kCalls];
    const std::uint64_t check = check_of(call);
    entry.elements.store(call.elements, std::memory_order_relaxed);
    entry.rest.store(call.rest, std::memory_order_relaxed);
    entry.check.store(check, std::memory_order_relaxed);
    count_.store(number, std::memory_order_relaxed);
    // The factor is odd, so the multiplication is invertible: once two digests differ, equal calls never make them
    // equal again.
    digest_.store((digest_.load(std::memory_order_relaxed) ^ check) * kOdd, std::memory_order_relaxed);
  }

  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }  // relaxed: as above
  Snapshot snapshot() const;  // any thread may call it at any time; leaves out entries that are being written

 private:
  struct Entry {
    std::atomic<std::uint64_t> elements{0}, rest{0}, check{0};
  };
  static constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  // If an entry mixes fields of two calls, they do not match the check of either, because `rest` holds the call number.
  static std::uint64_t check_of(const Signature& call) { return call.elements * kOdd + call.rest; }

  std::array<Entry, kCalls> entries_;
  std::atomic<std::uint64_t> count_{0}, digest_{0};
};

// The first call number for which the two histories hold different signatures: returns this rank's and the other's.
std::optional<std::pair<Signature, Signature>> first_difference(const CallHistory::Snapshot& own,
                                                                const CallHistory::Snapshot& other);

// Compares the histories of all ranks, which call it together. Throws on all of them if they differ.
void require_same_calls(transport::Bootstrap& bootstrap, const CallHistory& history, const transport::SetupCall& call,
                        Here here);

// Answers requests of other ranks for this rank's ledger entry and history, even while the threads of this rank wait.
class CallMonitor final : public transport::RankMonitor {
 public:
  explicit CallMonitor(std::shared_ptr<transport::LedgerSlot> ledger_slot) : ledger_slot_(std::move(ledger_slot)) {}
  void look() override { ledger_slot_->look(); }
  std::vector<std::byte> answer() override;
  std::uint64_t calls() const override { return history.count(); }  // collective calls
  static std::optional<transport::LedgerView> view_in(std::span<const std::byte> answer);
  static std::optional<CallHistory::Snapshot> history_in(std::span<const std::byte> answer);

  CallHistory history;

 private:
  const std::shared_ptr<transport::LedgerSlot> ledger_slot_;
};

}  // namespace slip::comm
