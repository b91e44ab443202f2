#include "comm/diagnose/call_history.hpp"

#include <cstring>

namespace slip::comm {
namespace {

template <class T>
std::optional<T> read_at(std::span<const std::byte> bytes, std::size_t offset) {
  if (bytes.size() < offset + sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

CallHistory::Snapshot CallHistory::snapshot() const {
  Snapshot result{
      .count = count_.load(std::memory_order_relaxed), .digest = digest_.load(std::memory_order_relaxed), .last = {}};
  for (std::size_t i = 0; i < kCalls; ++i) {
    const Entry& entry = entries_[i];
    const Signature call{entry.elements.load(std::memory_order_relaxed), entry.rest.load(std::memory_order_relaxed)};
    if (call.number() != 0 && entry.check.load(std::memory_order_relaxed) == check_of(call)) result.last[i] = call;
  }
  return result;
}

std::optional<std::pair<Signature, Signature>> first_difference(const CallHistory::Snapshot& own,
                                                                const CallHistory::Snapshot& other) {
  std::optional<std::pair<Signature, Signature>> first;
  for (const Signature& call : own.last) {
    const Signature* const theirs = other.find(call.number());
    if (!theirs || *theirs == call) continue;
    // The difference as a signed number, because call numbers wrap around after 2^32.
    if (!first || static_cast<std::int32_t>(call.number() - first->first.number()) < 0) first.emplace(call, *theirs);
  }
  return first;
}

std::vector<std::byte> CallMonitor::answer() {
  std::vector<std::byte> result;
  look();
  transport::append(result, transport::bytes_of(ledger_slot_->view()));
  transport::append(result, transport::bytes_of(history.snapshot()));
  return result;
}

std::optional<transport::LedgerView> CallMonitor::view_in(std::span<const std::byte> answer) {
  return read_at<transport::LedgerView>(answer, 0);
}

std::optional<CallHistory::Snapshot> CallMonitor::history_in(std::span<const std::byte> answer) {
  return read_at<CallHistory::Snapshot>(answer, sizeof(transport::LedgerView));
}

}  // namespace slip::comm
