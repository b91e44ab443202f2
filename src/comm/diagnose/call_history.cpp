#include "comm/diagnose/call_history.hpp"

#include <algorithm>
#include <cstring>

#include "base/fail.hpp"

namespace slip::comm {
namespace {

template <class T>
std::optional<T> read_at(std::span<const std::byte> bytes, std::size_t offset) {
  if (bytes.size() < offset + sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string difference_text(int rank, const CallHistory::Snapshot& own, int other_rank,
                            const CallHistory::Snapshot& other) {
  if (own.count != other.count) {
    const bool more = own.count > other.count;
    const Signature* const call =
        (more ? own : other).find(static_cast<std::uint32_t>(std::min(own.count, other.count) + 1));
    return fmt::format("rank {} made {} calls and rank {} made {}{}", rank, own.count, other_rank, other.count,
                       call ? fmt::format(": rank {} alone called {}", more ? rank : other_rank, call->text()) : "");
  }
  return fmt::format("rank {} and rank {} made {} calls each, and a call before the last {} differs", rank, other_rank,
                     own.count, CallHistory::kCalls);
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

// If the calls of two ranks differ, every rank differs from at least one of the two. So every rank throws.
void require_same_calls(transport::Bootstrap& bootstrap, const CallHistory& history, const transport::SetupCall& call,
                        Here here) {
  const int rank = bootstrap.rank();
  const CallHistory::Snapshot own = history.snapshot();
  const std::vector<CallHistory::Snapshot> all = bootstrap.all_gather(own, call);
  for (int other = 0; other < bootstrap.nranks(); ++other) {
    const CallHistory::Snapshot& theirs = all[static_cast<std::size_t>(other)];
    if (theirs.count == own.count && theirs.digest == own.digest) continue;
    if (const auto difference = first_difference(own, theirs))
      throw CallMismatch(rank, difference->first, other, difference->second);
    base::fail(ErrorCode::kMismatch, here, "{}: all ranks of a communicator must make the same calls in the same order",
               difference_text(rank, own, other, theirs));
  }
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
