// FailureTable: the ranks that one rank knows to be lost, failed (with the reason), or shut down cleanly. A
// ControlServer owns it. The first loss or failure breaks the communicator: it ends every wait on every rank. Each rank
// forwards new losses and failures to all ranks that it is connected with. So the notifications travel round the ring
// in both directions.
//
// Functions are thread-safe unless they require the mutex of the context.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/connection_table.hpp"

namespace slip::transport {

struct Loss {
  enum class Cause : std::int32_t {
    kEnded,    // its connection closed: the process ended or was killed
    kSilent,   // no heartbeat arrived: the process is stopped, or the network is cut
    kAborted,  // the rank sent that it has aborted
  };
  int rank = 0;
  Cause cause = Cause::kEnded;
  int noticed_by = 0;
  std::string text() const;
  ErrorCode code() const { return cause == Cause::kAborted ? ErrorCode::kAborted : ErrorCode::kRankLost; }
};

// The reason that a failed rank sent to all others. If several fail at once, all ranks keep the failure of the lowest
// one.
struct RankFailure {
  int rank = 0;
  ErrorCode code = ErrorCode::kOk;
  std::string text;
};

class FailureTable {
 public:
  FailureTable(ControlContext& context, ConnectionTable& connections) : context_(context), connections_(connections) {}

  // Notifies all ranks that this one failed, with the reason. On each of them broken_flag() is set, and all waits end
  // with this code and text. Does not wait. Only the first failure counts; if several ranks fail at once, that of the
  // lowest rank.
  void fail(ErrorCode code, std::string_view text);
  std::optional<RankFailure> failure() const {
    const base::LockGuard lock(context_.mutex());
    return failure_;
  }
  std::optional<Loss> first_loss() const {  // costs one load as long as the communicator is whole
    if (!broken_.is_set()) return std::nullopt;
    const base::LockGuard lock(context_.mutex());
    return losses_.empty() ? std::nullopt : std::optional(losses_.front());
  }
  std::vector<Loss> losses() const {  // in the order in which this rank learned of them
    const base::LockGuard lock(context_.mutex());
    return losses_;
  }
  void report_loss(const Loss& loss);  // adds a loss that another rank has detected
  bool has_left(int rank) const {      // by a clean shutdown; costs one load as long as no rank has left
    if (!any_left_.load(std::memory_order_acquire)) return false;  // acquire: pairs with the release in add_departure()
    const base::LockGuard lock(context_.mutex());
    return left_.contains(rank);
  }
  // Number of calls that a departed rank had made (RankMonitor::calls). None: the rank has not left.
  std::optional<std::uint64_t> calls_of_departed(int rank) const;
  std::set<int> gone() const;  // ranks that are lost, or left more than kAfterLeavingNs ago

  // The first loss or failure sets it. Every wait that must end when the communicator is broken checks it. A thread
  // that sees it set (acquire) finds the loss or the failure in this table.
  const AbortFlag& broken_flag() const { return broken_; }
  void throw_if_broken() const {
    const base::LockGuard lock(context_.mutex());
    require_whole();
  }
  void on_loss(std::shared_ptr<AbortFlag> flag) {  // the next loss sets this flag; null: removes it
    const base::LockGuard lock(context_.mutex());
    loss_flag_ = std::move(flag);
  }
  // If one of `ranks` is lost or fails, or already has, this table sets the flag.
  void on_trouble(std::shared_ptr<AbortFlag> flag, std::set<int> ranks);

  // A departed rank counts as gone this long after the notification of its departure. The notification comes over the
  // ring, and messages that the rank sent earlier on a direct connection may arrive after it.
  static constexpr std::int64_t kAfterLeavingNs = 1'000'000'000;
  static constexpr std::int64_t kMaxWaitNs = std::int64_t{3600} * 1'000'000'000;

  // Waits until ready() is true. False: the deadline passed. Throws as soon as the communicator is broken.
  template <class Ready>
  bool wait_until(std::int64_t deadline_ns, const Ready& ready) SLIP_REQUIRES(control_mutex);
  // Throws the loss or failure that broke the communicator.
  void require_whole() const SLIP_REQUIRES(control_mutex);
  bool is_whole() const SLIP_REQUIRES(control_mutex) { return losses_.empty() && !failure_; }
  bool is_lost(int rank) const SLIP_REQUIRES(control_mutex) {
    return std::ranges::any_of(losses_, [&](const Loss& one) { return one.rank == rank; });
  }
  std::optional<std::int64_t> left_at(int rank) const SLIP_REQUIRES(control_mutex) {
    const auto found = left_.find(rank);
    return found == left_.end() ? std::nullopt : std::optional(found->second.known_ns);
  }
  // The ranks that count as gone at this time. If another rank will count as gone later, lowers `next_ns` to that time.
  std::set<int> gone_at(std::int64_t now, std::int64_t& next_ns) const SLIP_REQUIRES(control_mutex);
  // add_loss() and add_failure() also forward a new loss or failure to the connected ranks. add_departure() does not:
  // the caller passes the goodbye on round the ring.
  void add_loss(const Loss& loss) SLIP_REQUIRES(control_mutex);
  void add_failure(RankFailure failure) SLIP_REQUIRES(control_mutex);
  bool add_departure(int rank, std::uint64_t calls) SLIP_REQUIRES(control_mutex) {  // false: it was known
    if (!left_.emplace(rank, Departure{base::now_ns(), calls}).second) return false;
    any_left_.store(true, std::memory_order_release);  // release: pairs with the acquire in has_left()
    return true;
  }
  void set_broken() { broken_.set(); }  // the reason is ControlContext::thread_failure
  // Sends a rank that has just connected the losses and failures that it may not know.
  void announce_to(ControlConnection& connection) const SLIP_REQUIRES(control_mutex);

 private:
  struct Departure {
    std::int64_t known_ns = 0;  // when this rank learned of it
    std::uint64_t calls = 0;    // that the rank had made
  };
  void set_trouble_flag(int rank) SLIP_REQUIRES(control_mutex) {
    if (trouble_flag_ && trouble_ranks_.contains(rank)) trouble_flag_->set();
  }

  ControlContext& context_;
  ConnectionTable& connections_;
  AbortFlag broken_;
  std::atomic<bool> any_left_{false};
  std::vector<Loss> losses_ SLIP_GUARDED_BY(control_mutex);
  std::optional<RankFailure> failure_ SLIP_GUARDED_BY(control_mutex);
  std::map<int, Departure> left_ SLIP_GUARDED_BY(control_mutex);            // by rank
  std::shared_ptr<AbortFlag> loss_flag_ SLIP_GUARDED_BY(control_mutex);     // may be null
  std::shared_ptr<AbortFlag> trouble_flag_ SLIP_GUARDED_BY(control_mutex);  // may be null
  std::set<int> trouble_ranks_ SLIP_GUARDED_BY(control_mutex);
};

template <class Ready>
bool FailureTable::wait_until(std::int64_t deadline_ns, const Ready& ready) {
  for (;;) {
    if (ready()) return true;
    require_whole();
    const std::int64_t rest = deadline_ns == 0 ? kMaxWaitNs : deadline_ns - base::now_ns();
    if (rest <= 0) return false;
    context_.changed.wait_for(context_.mutex(), std::chrono::nanoseconds(std::min(rest, kMaxWaitNs)));
  }
}

}  // namespace slip::transport
