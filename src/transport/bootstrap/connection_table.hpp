// ConnectionTable: the control connections of one rank. In the ring each rank has one connection to its successor and
// one from its predecessor. Messages to a single rank use a direct connection, which is made for the first message.
//
// The parts of a ControlServer share it. Every function requires ControlContext::mutex(). Only the
// server's thread removes connections, so that thread may keep pointers to them without the mutex.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/job/placement.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

// Names the mutex of a ControlContext in annotations. Each part of a server has a reference to the context, and clang
// cannot see that all of them refer to the same one.
struct SLIP_CAPABILITY("control mutex") ControlMutex {};
extern ControlMutex control_mutex;  // has no definition

// Shared by the parts of a control server: the rank, the mutex of all their data, and the means to wake each other.
struct ControlContext {
  ControlContext(const RankId& id, const Secret& session_secret, std::shared_ptr<AbortFlag> abort_flag)
      : self(id), session(session_secret), abort(std::move(abort_flag)) {}

  const RankId self;
  const Secret session;  // the secret of all connections between the ranks
  const std::shared_ptr<AbortFlag> abort;
  base::WakeUp wake_up;   // ends the poll of the server's thread
  base::CondVar changed;  // notified after every change that a calling thread may wait for
  std::string thread_failure SLIP_GUARDED_BY(control_mutex);  // why the server's thread ended, if it failed

  FrameHeader header(FrameKind kind, std::uint64_t tag = 0) const {
    return {.kind = kind, .rank = self.rank, .tag = tag, .nranks = self.nranks};
  }
  void require_not_aborted() const SLIP_REQUIRES(control_mutex);
  base::Mutex& mutex() const SLIP_RETURN_CAPABILITY(control_mutex) { return mutex_; }

 private:
  mutable base::Mutex mutex_;
};

struct ControlConnection {
  enum class Role { kUnknown, kSuccessor, kPredecessor, kDirectIn, kDirectOut };
  FrameSocket channel;
  Role role;
  int rank;               // the peer's rank; -1: not known yet
  std::int64_t heard_ns;  // when the peer was last heard; while the role is unknown, when it connected
  short ready = 0;        // the events that poll reported
  bool closing = false;   // no more frames are expected: the server closes it at the end of this round
  bool watched = false;   // the peer must answer pings, see FailureDetector::watch_all

  bool in_ring() const { return role == Role::kSuccessor || role == Role::kPredecessor; }
  bool must_be_heard() const { return in_ring() || watched; }
  bool is_unproven() const { return role == Role::kUnknown; }
  bool has_spoken() const { return channel.has_spoken(); }
};

class ConnectionTable {
 public:
  using Role = ControlConnection::Role;

  ConnectionTable(const ControlContext& context, Socket listener) : context_(context), listener_(std::move(listener)) {}

  std::list<ControlConnection>& all() SLIP_REQUIRES(control_mutex) { return connections_; }
  int listener_descriptor() const SLIP_REQUIRES(control_mutex) {
    return out_of_descriptors_ ? -1 : listener_.descriptor();
  }
  // True: the listener must not be polled before a delay has passed.
  bool out_of_descriptors() const SLIP_REQUIRES(control_mutex) { return out_of_descriptors_; }
  bool predecessor_joined() const SLIP_REQUIRES(control_mutex) { return predecessor_joined_; }
  bool has_undelivered(int rank) const SLIP_REQUIRES(control_mutex) { return undelivered_.contains(rank); }

  // The direct connection to the rank; null: none.
  ControlConnection* outgoing(int rank) SLIP_REQUIRES(control_mutex);
  void add_outgoing(FrameSocket channel, int rank) SLIP_REQUIRES(control_mutex) {
    connections_.push_back({std::move(channel), Role::kDirectOut, rank, base::now_ns()});
    connections_.back().channel.trust();
    connections_.back().channel.queue(context_.header(FrameKind::kGreetDirect));
  }
  ControlConnection& add_successor(FrameSocket channel) SLIP_REQUIRES(control_mutex);
  // Sends the frame to the successor. If the successor is not connected yet, keeps the frame until it is.
  void pass_on(const FrameHeader& header, std::span<const std::byte> body) SLIP_REQUIRES(control_mutex);

  void accept_all(std::int64_t now) SLIP_REQUIRES(control_mutex);
  // Handles the first frame of an accepted connection, which names the rank that connects and the role of the
  // connection. Closes the connection if it is another frame.
  void identify(ControlConnection& connection, const FrameHeader& header) SLIP_REQUIRES(control_mutex);
  // Closes the finished connections, and those that were not identified in time.
  void close_finished(std::int64_t now) SLIP_REQUIRES(control_mutex);
  // Also closes the connections that are not identified.
  void close_listener() SLIP_REQUIRES(control_mutex) {
    listener_.close();
    connections_.remove_if([](const ControlConnection& one) { return one.role == Role::kUnknown; });
  }
  void clear() SLIP_REQUIRES(control_mutex) { connections_.clear(); }

 private:
  const ControlContext& context_;
  Socket listener_ SLIP_GUARDED_BY(control_mutex);
  std::list<ControlConnection> connections_ SLIP_GUARDED_BY(control_mutex);
  // Frames from the predecessor, received before the successor was connected.
  std::vector<Frame> for_successor_ SLIP_GUARDED_BY(control_mutex);
  // Ranks whose connection closed before all messages to them were sent.
  std::set<int> undelivered_ SLIP_GUARDED_BY(control_mutex);
  bool predecessor_joined_ SLIP_GUARDED_BY(control_mutex) = false;
  bool successor_joined_ SLIP_GUARDED_BY(control_mutex) = false;
  bool out_of_descriptors_ SLIP_GUARDED_BY(control_mutex) = false;
};

}  // namespace slip::transport
