// FailureDetector: finds ranks that are silent; a ControlServer uses it. Each rank sends heartbeats to its two
// neighbours in the ring. If a neighbour is silent for too long, the rank declares it lost. After a loss a rank can
// watch others directly, see recovery.hpp.
//
// Init has another rule: ranks start at different times, and a lossy network may delay a rank's first bytes by many
// seconds. Until init is over on all ranks, a silent rank is declared lost only after the deadline of init. A rank
// whose connection closes is declared lost at once, at any time.
//
// Functions are thread-safe unless they require the mutex of the context; the server's thread calls those.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <utility>

#include "transport/bootstrap/failure_table.hpp"

namespace slip::transport {

struct Heartbeat {
  std::chrono::milliseconds interval{1000};
  std::chrono::milliseconds silence{4000};  // a neighbour that is silent for this long is declared lost
};

class FailureDetector {
 public:
  FailureDetector(ControlContext& context, ConnectionTable& connections, FailureTable& failures,
                  const Heartbeat& heartbeat);

  void begin_init(std::int64_t deadline_ns) {  // a second call changes the deadline
    const base::LockGuard lock(context_.mutex());
    init_deadline_ns_ = deadline_ns;
  }
  void end_init();  // init is over on this rank: notifies the others

  // The longest time for which this rank sent nothing, if it was long enough for the others to declare it lost;
  // otherwise 0.
  std::int64_t own_silence_ns() const {
    const base::LockGuard lock(context_.mutex());
    return own_silence_ns_;
  }
  // Pings the ranks from now on, and declares those lost that do not answer.
  void watch_all(std::span<const std::pair<int, SocketAddress>> ranks, std::int64_t deadline_ns);
  void stop_watching() {
    const base::LockGuard lock(context_.mutex());
    for (ControlConnection& one : connections_.all()) one.watched = false;
  }
  // The time for which this process was stopped, in all its stops. A stop counts a moment after its end.
  std::int64_t suspended_ns() const { return suspended_ns_.load(std::memory_order_relaxed); }
  std::int64_t interval_ns() const { return interval_ns_; }
  std::int64_t silence_ns() const { return silence_ns_; }

  // Finds the silent ranks and sends the heartbeats that are due.
  void beat(std::int64_t now) SLIP_REQUIRES(control_mutex);
  // The time of the next heartbeat; 0: none was sent yet.
  std::int64_t next_beat_ns() const SLIP_REQUIRES(control_mutex) { return next_beat_ns_; }
  // The time at which the peer is declared lost if it stays silent.
  std::int64_t lost_at_ns(const ControlConnection& connection) const SLIP_REQUIRES(control_mutex) {
    const std::int64_t silent = connection.heard_ns + silence_ns_;
    return connection.in_ring() && !init_over_everywhere() ? std::max(silent, init_deadline_ns_) : silent;
  }
  // Deadline for peers to answer a goodbye that is sent now.
  std::int64_t goodbye_end_ns(std::int64_t now) const SLIP_REQUIRES(control_mutex);
  void add_init_over(const ControlConnection& from, const FrameHeader& header) SLIP_REQUIRES(control_mutex) {
    if (header.rank < 0 || header.rank >= context_.self.nranks || !init_over_.insert(header.rank).second) return;
    notify_init_over(header.rank, &from);
  }
  // The thread planned to wake at `planned_ns`. If it woke much later, this process was stopped, perhaps together with
  // all others. So it must not blame the others for the silence of that time.
  void note_suspension(std::int64_t now, std::int64_t planned_ns) SLIP_REQUIRES(control_mutex) {
    if (planned_ns == 0 || now - planned_ns < interval_ns_) return;
    // relaxed: only a number; its readers tolerate that it comes late.
    suspended_ns_.fetch_add(now - planned_ns, std::memory_order_relaxed);
    for (ControlConnection& one : connections_.all()) one.heard_ns = now;
  }
  // If this rank sent nothing for too long by its own clock, the others have declared it lost. So it notices that even
  // if their messages do not arrive.
  void note_own_silence(std::int64_t now) SLIP_REQUIRES(control_mutex) {
    if (next_beat_ns_ == 0) return;
    const std::int64_t silence = now - (next_beat_ns_ - interval_ns_);
    if (silence >= silence_ns_) own_silence_ns_ = std::max(own_silence_ns_, silence);
  }

 private:
  bool init_over_everywhere() const SLIP_REQUIRES(control_mutex) {
    return init_over_.size() == static_cast<std::size_t>(context_.self.nranks);
  }
  void notify_init_over(int rank, const ControlConnection* except) SLIP_REQUIRES(control_mutex);

  ControlContext& context_;
  ConnectionTable& connections_;
  FailureTable& failures_;
  const std::int64_t interval_ns_, silence_ns_;
  // 0: no init has begun, so silent ranks are declared lost at any time.
  std::int64_t init_deadline_ns_ SLIP_GUARDED_BY(control_mutex) = 0;
  // Ranks on which init is over, including this one.
  std::set<int> init_over_ SLIP_GUARDED_BY(control_mutex);
  std::int64_t next_beat_ns_ SLIP_GUARDED_BY(control_mutex) = 0;
  std::atomic<std::int64_t> suspended_ns_{0};
  std::int64_t own_silence_ns_ SLIP_GUARDED_BY(control_mutex) = 0;
};

}  // namespace slip::transport
