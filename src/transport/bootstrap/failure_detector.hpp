// FailureDetector: finds ranks that are silent. Each rank sends heartbeats to its two neighbours in the ring; a
// neighbour that was silent for too long is lost. After a loss a rank can watch others directly, see recovery.hpp.
//
// Init is different: ranks start at different times, and on a bad network a rank may not be heard for many seconds.
// Until init is over on all ranks, silence counts only after the deadline of init. A connection that closes counts at
// once, at any time.
//
// Functions are thread-safe unless they say REQUIRES.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <utility>

#include "transport/bootstrap/failure_table.hpp"

namespace slip {

struct Heartbeat {
  std::chrono::milliseconds interval{1000};
  std::chrono::milliseconds silence{4000};  // a neighbour that was silent for so long is lost
};

class FailureDetector {
 public:
  FailureDetector(ControlContext& context, ConnectionTable& connections, FailureTable& failures,
                  const Heartbeat& heartbeat);

  void begin_init(std::int64_t deadline_ns);  // or moves the deadline
  void end_init();                            // of this rank; the others are notified

  // The longest time for which this rank gave no sign of life, if others then gave it up; otherwise 0.
  std::int64_t own_silence_ns() const;
  // Asks the rank for signs of life from now on: it is lost if it gives none. False: it is lost.
  bool watch(int rank, const SocketAddress& at, std::int64_t deadline_ns);
  void watch_all(std::span<const std::pair<int, SocketAddress>> ranks, std::int64_t deadline_ns);
  void stop_watching();
  std::int64_t interval_ns() const { return interval_ns_; }
  std::int64_t silence_ns() const { return silence_ns_; }

  // REQUIRES, for all below: the caller holds the mutex. The server's thread calls them.

  // Finds the silent ranks and sends the heartbeats that are due.
  void beat(std::int64_t now);
  std::int64_t next_beat_ns() const { return next_beat_ns_; }          // 0: none was sent yet
  std::int64_t lost_at_ns(const ControlConnection& connection) const;  // if nothing is heard before
  std::int64_t goodbye_end_ns(std::int64_t now) const;                 // until when peers may take to answer a goodbye
  void add_init_over(const ControlConnection& from, const FrameHeader& header);
  // The thread planned to wake at `planned_ns`. If it woke much later, this process was stopped, perhaps together with
  // all others: their silence was its own.
  void note_suspension(std::int64_t now, std::int64_t planned_ns);
  // By its own clock a rank knows what others believe about it, even if their messages do not reach it.
  void note_own_silence(std::int64_t now);

 private:
  bool init_over_everywhere() const;
  void notify_init_over(int rank, const ControlConnection* except);

  ControlContext& context_;
  ConnectionTable& connections_;
  FailureTable& failures_;
  const std::int64_t interval_ns_, silence_ns_;
  // Under the mutex.
  std::int64_t init_deadline_ns_ = 0;  // 0: silence counts at any time
  std::set<int> init_over_;            // ranks that said so, this one among them
  std::int64_t next_beat_ns_ = 0, own_silence_ns_ = 0;
};

}  // namespace slip
