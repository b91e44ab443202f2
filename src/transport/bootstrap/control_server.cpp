#include "transport/bootstrap/control_server.hpp"

#include <poll.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/fail.hpp"

namespace slip::transport {
namespace {

using Role = ControlConnection::Role;

// Time limit of a goodbye if the communicator is broken, and for peers that have not proven themselves.
constexpr std::int64_t kShortGoodbyeNs = 1'000'000'000;

}  // namespace

ControlServer::ControlServer(const RankId& self, const Secret& session, Socket listener,
                             std::shared_ptr<AbortFlag> abort, const Heartbeat& heartbeat)
    : context_(self, session, std::move(abort)),
      connections_(context_, std::move(listener)),
      failures_(context_, connections_),
      detector_(context_, connections_, failures_, heartbeat),
      messages_(context_, connections_, failures_) {
  thread_.start("slip-bootstrap", [this] { run(); });
}

ControlServer::~ControlServer() {
  {
    const base::LockGuard lock(context_.mutex());
    leaving_ = true;
  }
  context_.wake_up.signal();
  thread_.join();
}

void ControlServer::join_ring(FrameSocket to_successor, std::int64_t deadline_ns) {
  const RankId& self = context_.self;
  const base::LockGuard lock(context_.mutex());
  failures_.announce_to(connections_.add_successor(std::move(to_successor)));
  context_.wake_up.signal();
  const auto left = [&]() SLIP_REQUIRES(control_mutex) {
    return failures_.left_at(self.predecessor()) && !connections_.predecessor_joined();
  };
  const auto joined_or_left = [&]()
                                  SLIP_REQUIRES(control_mutex) { return connections_.predecessor_joined() || left(); };
  if (failures_.wait_until(deadline_ns, joined_or_left) && !left()) return;
  failures_.require_whole();
  base::fail(left() ? ErrorCode::kRankLost : ErrorCode::kTimeout, {}, "{}: rank {}, its predecessor in the ring, {}",
             self.text(), self.predecessor(),
             left() ? "has left" : "connected to the root, but not to this rank before the deadline");
}

// Waits for two iterations of the thread's loop: the current one may have read the connections before this call.
void ControlServer::settle() {
  const base::LockGuard lock(context_.mutex());
  for (int i = 0; i < 2; ++i) {
    context_.wake_up.signal();
    for (const std::uint64_t before = rounds_; rounds_ == before;) {
      context_.require_not_aborted();
      context_.changed.wait_for(context_.mutex(), std::chrono::nanoseconds(detector_.silence_ns()));
    }
  }
}

void ControlServer::run() {
  std::string failure;
  try {
    for (bool over = false; !over;) {
      wait_for_events();
      const base::LockGuard lock(context_.mutex());
      serve_all();
      over = goodbye_over(base::now_ns());
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const base::LockGuard lock(context_.mutex());
  connections_.clear();
  if (failure.empty()) return;
  context_.thread_failure = "the thread of its connections ended: " + failure;
  failures_.set_broken();
  context_.changed.notify_all();
}

void ControlServer::wait_for_events() {
  std::vector<pollfd> watched;
  std::vector<ControlConnection*> connections;  // the pointers stay valid: only this thread removes connections
  {
    const base::LockGuard lock(context_.mutex());
    const std::int64_t now = base::now_ns();
    planned_ns_ = detector_.next_beat_ns() == 0 ? now : detector_.next_beat_ns();
    const auto no_later_than = [this](std::int64_t time) { planned_ns_ = std::min(planned_ns_, time); };
    if (goodbye_end_ns_ != 0) {
      no_later_than(goodbye_end_ns_);
      if (now < goodbye_begin_ns_ + kShortGoodbyeNs) no_later_than(goodbye_begin_ns_ + kShortGoodbyeNs);
    } else if (explain_end_ns_ != 0) {
      no_later_than(explain_end_ns_);
    }
    if (monitor_) no_later_than(std::max(next_look_ns_, now));
    if (connections_.out_of_descriptors()) no_later_than(now + kNoDescriptorsPauseNs);
    watched.push_back({context_.wake_up.descriptor(), POLLIN, 0});
    watched.push_back({abort_noted_ ? -1 : context_.abort->descriptor(), POLLIN, 0});
    watched.push_back({connections_.listener_descriptor(), POLLIN, 0});
    for (ControlConnection& one : connections_.all()) {
      const short events = one.channel.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
      watched.push_back({one.channel.socket().descriptor(), events, 0});
      connections.push_back(&one);
      if (one.role == Role::kUnknown) no_later_than(one.heard_ns + kGreetingLimitNs);
      else if (one.must_be_heard()) no_later_than(detector_.lost_at_ns(one));
    }
  }
  poll_until(watched, planned_ns_);
  if (watched[0].revents != 0) context_.wake_up.drain();
  for (std::size_t i = 0; i < connections.size(); ++i) connections[i]->ready = watched[i + 3].revents;
}

void ControlServer::serve_all() {
  const std::int64_t now = base::now_ns();
  detector_.note_suspension(now, planned_ns_);
  detector_.note_own_silence(now);
  if (context_.abort->is_set() && !abort_noted_) {
    abort_noted_ = true;
    failures_.add_loss({context_.self.rank, Loss::Cause::kAborted, context_.self.rank});
  }
  // Must come after the loss above is sent: peers read nothing after a goodbye.
  if (leaving_ && goodbye_end_ns_ == 0 && !must_explain(now)) begin_goodbye(now);
  connections_.accept_all(now);
  for (ControlConnection& one : connections_.all()) serve(one, now);
  detector_.beat(now);
  call_monitor(now);
  take_last_messages();
  connections_.close_finished(now);
  ++rounds_;
  context_.changed.notify_all();
}

void ControlServer::serve(ControlConnection& connection, std::int64_t now) {
  if (connection.ready & POLLOUT) connection.channel.flush();
  if (!(connection.ready & ~POLLOUT)) return;
  connection.ready = 0;
  connection.channel.pump();
  while (!connection.closing || leaving_) {
    std::optional<Frame> frame = connection.channel.next();
    if (!frame) break;
    if (connection.role != Role::kUnknown) connection.heard_ns = now;
    handle(connection, *frame);
  }
  if (!connection.channel.ended() && !connection.channel.is_foreign()) return;
  // If a rank that has proven itself closes without a goodbye, it is lost. Before the proof, the peer may have closed
  // the connection because it had too many unproven ones.
  const bool was_known = connection.role != Role::kUnknown && (connection.channel.is_proven() || connection.watched);
  if (was_known && !connection.closing && !leaving_)
    failures_.add_loss({connection.rank, Loss::Cause::kEnded, context_.self.rank});
  connection.closing = true;
}

void ControlServer::handle(ControlConnection& connection, Frame& frame) {
  const FrameHeader& header = frame.header;
  if (connection.role == Role::kUnknown) {
    connections_.identify(connection, header);
    if (connection.role != Role::kUnknown) failures_.announce_to(connection);
    return;
  }
  switch (header.kind) {
    case FrameKind::kMessage: messages_.add_message(connection.rank, header.tag, std::move(frame.body)); break;
    case FrameKind::kPiece:
      if (header.rank != context_.self.successor()) connections_.pass_on(header, frame.body);
      messages_.add_piece(header, std::move(frame.body));
      break;
    case FrameKind::kLost:
      if (LostBody body; read_body(frame.body, body))
        failures_.add_loss({header.rank, static_cast<Loss::Cause>(body.cause), body.noticed_by});
      break;
    case FrameKind::kLeft: handle_left(connection, header); break;
    case FrameKind::kFailed:
      failures_.add_failure({header.rank, static_cast<ErrorCode>(header.tag), frame.text().substr(0, kMaxFailureText)});
      break;
    case FrameKind::kInitOver: detector_.add_init_over(connection, header); break;
    case FrameKind::kAsk:
      connection.channel.queue(context_.header(FrameKind::kAnswer, header.tag),
                               monitor_ ? monitor_->answer() : std::vector<std::byte>());
      break;
    case FrameKind::kAnswer: messages_.add_answer(connection.rank, header.tag, std::move(frame.body)); break;
    case FrameKind::kPing: connection.channel.queue(context_.header(FrameKind::kAlive)); break;
    default: break;  // a heartbeat
  }
}

// The notification follows the same path as the pieces of all-gathers. So every rank that gets it already has all
// pieces that the departed rank sent.
void ControlServer::handle_left(ControlConnection& connection, const FrameHeader& header) {
  if (header.rank == connection.rank) connection.closing = true;
  if (header.rank == connection.rank && connection.watched) failures_.add_departure(header.rank, header.tag);
  if (connection.role != Role::kPredecessor || !failures_.add_departure(header.rank, header.tag)) return;
  if (header.rank != context_.self.successor()) connections_.pass_on(header, {});
}

// The notification of a death may overtake the last messages of the dead rank, because they use another connection.
void ControlServer::take_last_messages() {
  for (ControlConnection& one : connections_.all()) {
    if (!one.closing || one.role != Role::kDirectIn) continue;
    one.channel.pump();
    while (std::optional<Frame> frame = one.channel.next()) {
      if (frame->header.kind == FrameKind::kMessage)
        messages_.add_message(one.rank, frame->header.tag, std::move(frame->body));
    }
  }
}

// If a rank leaves because of a loss before its predecessor has joined, it waits for the predecessor and sends it the
// loss. If it just closed its listener, the predecessor could not connect, and would name this rank instead of the lost
// one.
bool ControlServer::must_explain(std::int64_t now) {
  const int predecessor = context_.self.predecessor();
  if (failures_.is_whole() || context_.self.nranks == 1 || connections_.predecessor_joined() ||
      failures_.is_lost(predecessor) || failures_.left_at(predecessor))
    return false;
  if (explain_end_ns_ == 0) explain_end_ns_ = now + detector_.silence_ns();
  return now < explain_end_ns_;
}

// Each peer closes the connection when it has read the goodbye. So this rank knows that no frame it sent is lost.
void ControlServer::begin_goodbye(std::int64_t now) {
  goodbye_begin_ns_ = now;
  goodbye_end_ns_ = failures_.is_whole() ? detector_.goodbye_end_ns(now) : now + kShortGoodbyeNs;
  connections_.close_listener();
  const FrameHeader goodbye = context_.header(FrameKind::kLeft, monitor_ ? monitor_->calls() : 0);
  for (ControlConnection& one : connections_.all()) one.channel.queue(goodbye);
}

// If a connection closes before the peer has read the goodbye, the peer declares this rank lost. So a rank that ends
// normally waits for as long as a peer may be silent.
bool ControlServer::goodbye_over(std::int64_t now) {
  if (goodbye_end_ns_ == 0) return false;
  if (now >= goodbye_end_ns_) return true;
  const bool proven_left =
      std::ranges::any_of(connections_.all(), [](const auto& one) { return one.channel.is_proven(); });
  return connections_.all().empty() || (!proven_left && now >= goodbye_begin_ns_ + kShortGoodbyeNs);
}

}  // namespace slip::transport
