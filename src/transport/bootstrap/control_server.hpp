// ControlServer: the thread that serves the control connections of one rank, also while the rank's own threads compute
// or hang. Every rank is connected to its successor and its predecessor in a ring. Frames for all ranks travel round
// the ring: each server passes them on. So an all-gather knows exactly which ranks have not joined.
//
// The server consists of ConnectionTable (the connections), FailureTable (lost and departed ranks), FailureDetector
// (heartbeats), and MessageExchange (messages, all-gathers and questions). They share one mutex,
// ControlContext::mutex(). Calling threads wait on a condition variable with that mutex. Only the server's thread reads
// from connections and closes them; any thread may send. If the socket's buffer is full, the server's thread sends the
// rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "transport/bootstrap/failure_detector.hpp"
#include "transport/bootstrap/message_exchange.hpp"

namespace slip::transport {

// Callbacks that the control thread runs for a rank, even if the rank's own threads are stuck. They must not block or
// throw.
class RankMonitor {
 public:
  virtual ~RankMonitor() = default;
  virtual void look() = 0;                      // called a few times per second, to date the progress of the rank
  virtual std::vector<std::byte> answer() = 0;  // the reply to another rank that asks for this rank's state
  virtual std::uint64_t calls() const = 0;      // number of calls that the rank has made, sent with its goodbye
};

class ControlServer : base::NoCopy {
 public:
  ControlServer(const RankId& self, const Secret& session, Socket listener, std::shared_ptr<AbortFlag> abort,
                const Heartbeat& heartbeat);
  // Sends a goodbye to all peers, and waits until they have taken all frames, see goodbye_over().
  ~ControlServer();

  FailureTable& failures() { return failures_; }
  const FailureTable& failures() const { return failures_; }
  FailureDetector& detector() { return detector_; }
  MessageExchange& messages() { return messages_; }

  void join_ring(FrameSocket to_successor, std::int64_t deadline_ns);  // returns when the predecessor has joined, too
  // Returns when all frames that had arrived before the call are handled. A rank that was stopped and runs again must
  // first read whether the others have declared it lost.
  void settle();
  void set_monitor(std::shared_ptr<RankMonitor> monitor) {  // null: removes the monitor
    const base::LockGuard lock(context_.mutex());
    monitor_ = std::move(monitor);
  }

 private:
  void run();
  void wait_for_events();
  void serve_all() SLIP_REQUIRES(control_mutex);
  void serve(ControlConnection& connection, std::int64_t now) SLIP_REQUIRES(control_mutex);
  void handle(ControlConnection& connection, Frame& frame) SLIP_REQUIRES(control_mutex);
  void handle_left(ControlConnection& connection, const FrameHeader& header) SLIP_REQUIRES(control_mutex);
  void take_last_messages() SLIP_REQUIRES(control_mutex);
  // Calls look() at a quarter of the heartbeat's interval: often enough to date an event, and still cheap.
  void call_monitor(std::int64_t now) SLIP_REQUIRES(control_mutex) {
    if (!monitor_ || now < next_look_ns_) return;
    monitor_->look();
    next_look_ns_ = now + detector_.interval_ns() / 4;
  }
  bool must_explain(std::int64_t now) SLIP_REQUIRES(control_mutex);
  void begin_goodbye(std::int64_t now) SLIP_REQUIRES(control_mutex);
  bool goodbye_over(std::int64_t now) SLIP_REQUIRES(control_mutex);

  ControlContext context_;
  ConnectionTable connections_;
  FailureTable failures_;
  FailureDetector detector_;
  MessageExchange messages_;
  std::shared_ptr<RankMonitor> monitor_ SLIP_GUARDED_BY(control_mutex);
  std::uint64_t rounds_ SLIP_GUARDED_BY(control_mutex) = 0;  // completed iterations of the thread's loop
  bool leaving_ SLIP_GUARDED_BY(control_mutex) = false;
  // Used by the server's thread only. Times of now_ns(); 0: not yet.
  std::int64_t next_look_ns_ = 0, planned_ns_ = 0, goodbye_begin_ns_ = 0, goodbye_end_ns_ = 0, explain_end_ns_ = 0;
  bool abort_noted_ = false;
  base::Thread thread_;
};

}  // namespace slip::transport
