// CallHistory: the last collective calls that this rank has enqueued. Signatures travel with the data, so a rank that
// only sends compares nothing: ranks that wait for long, and finalize(), compare their histories instead.
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

  // Trivially copyable: it travels to other ranks as it is.
  struct Snapshot {
    std::uint64_t count = 0;  // of all calls so far
    std::uint64_t digest = 0;
    std::array<Signature, kCalls> last = {};  // by number modulo kCalls; number 0: not known
    const Signature* find(std::uint32_t number) const;
  };

  // One thread at a time; `number`: of the call, counted from 1. relaxed, here and in snapshot(): `tie` ties the words
  // of an entry together, as in the ledger. Each call pays for this, so it is two multiplications and five stores.
  void add(const Signature& call, std::uint64_t number) {
    Entry& entry = entries_[number % kCalls];
    const std::uint64_t tie = tie_of(call);
    entry.elements.store(call.elements, std::memory_order_relaxed);
    entry.rest.store(call.rest, std::memory_order_relaxed);
    entry.tie.store(tie, std::memory_order_relaxed);
    count_.store(number, std::memory_order_relaxed);
    // Odd factor: once two digests differ, the same calls never make them equal again.
    digest_.store((digest_.load(std::memory_order_relaxed) ^ tie) * kOdd, std::memory_order_relaxed);
  }

  // Any thread, at any time: entries that are being written are left out.
  Snapshot snapshot() const;
  std::optional<Signature> find(std::uint32_t number) const;

 private:
  struct Entry {
    std::atomic<std::uint64_t> elements{0}, rest{0}, tie{0};
  };
  static constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  // Words of two calls do not pass for one: `rest` has the number of the call.
  static std::uint64_t tie_of(const Signature& call) { return call.elements * kOdd + call.rest; }
  static std::optional<Signature> read(const Entry& entry);

  std::array<Entry, kCalls> entries_;
  std::atomic<std::uint64_t> count_{0}, digest_{0};
};

// The first call that both know and that differs: this rank's and the other's.
std::optional<std::pair<Signature, Signature>> first_difference(const CallHistory::Snapshot& own,
                                                                const CallHistory::Snapshot& other);

// Answers for a rank whose threads wait: what it is doing, and its history.
class CallMonitor final : public RankMonitor {
 public:
  explicit CallMonitor(std::shared_ptr<LedgerSlot> seat) : seat_(std::move(seat)) {}
  void look() override { seat_->look(); }
  std::vector<std::byte> answer() override;
  static std::optional<LedgerView> view_in(std::span<const std::byte> answer);
  static std::optional<CallHistory::Snapshot> history_in(std::span<const std::byte> answer);

  CallHistory history;

 private:
  const std::shared_ptr<LedgerSlot> seat_;
};

}  // namespace slip
