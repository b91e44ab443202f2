#include "transport/bootstrap/connection_table.hpp"

#include "base/fail.hpp"

namespace slip::transport {

void ControlContext::require_not_aborted() const {
  if (!thread_failure.empty()) base::fail(ErrorCode::kIo, {}, "{}: {}", self.text(), thread_failure);
  if (abort->is_set()) base::fail(ErrorCode::kAborted, {}, "{}: aborted from another thread", self.text());
}

ControlConnection* ConnectionTable::outgoing(int rank) {
  for (ControlConnection& one : connections_) {
    if (one.role == Role::kDirectOut && one.rank == rank && !one.closing) return &one;
  }
  return nullptr;
}

ControlConnection& ConnectionTable::add_successor(FrameSocket channel) {
  connections_.push_back({std::move(channel), Role::kSuccessor, context_.self.successor(), base::now_ns()});
  ControlConnection& added = connections_.back();
  added.channel.trust();
  added.channel.queue(context_.header(FrameKind::kGreetRing));
  successor_joined_ = true;
  for (const Frame& frame : for_successor_) pass_on(frame.header, frame.body);
  for_successor_.clear();
  return added;
}

void ConnectionTable::pass_on(const FrameHeader& header, std::span<const std::byte> body) {
  if (!successor_joined_) for_successor_.push_back({header, {body.begin(), body.end()}});
  for (ControlConnection& one : connections_) {
    if (one.role == Role::kSuccessor && !one.closing) one.channel.queue(header, body);
  }
}

void ConnectionTable::accept_all(std::int64_t now) {
  out_of_descriptors_ = transport::accept_all(listener_, connections_, [&](Socket socket) {
    return ControlConnection{FrameSocket(std::move(socket), context_.session, FrameSocket::Side::kAccepts),
                             Role::kUnknown, -1, now, POLLIN};
  });
}

void ConnectionTable::identify(ControlConnection& connection, const FrameHeader& header) {
  const RankId& self = context_.self;
  const bool known =
      header.nranks == self.nranks && header.rank >= 0 && header.rank < self.nranks && header.rank != self.rank;
  const bool ring = header.kind == FrameKind::kGreetRing && header.rank == self.predecessor() && !predecessor_joined_;
  if (!known || (!ring && header.kind != FrameKind::kGreetDirect)) {
    connection.closing = true;
    return;
  }
  connection.role = ring ? Role::kPredecessor : Role::kDirectIn;
  connection.rank = header.rank;
  connection.channel.trust();
  predecessor_joined_ = predecessor_joined_ || ring;
}

void ConnectionTable::close_finished(std::int64_t now) {
  connections_.remove_if([&](const ControlConnection& one) SLIP_REQUIRES(control_mutex) {
    if (one.role == Role::kUnknown && now - one.heard_ns >= kGreetingLimitNs) return true;
    // A lost rank takes no more bytes: send() must not wait for it.
    if (one.closing && one.role == Role::kDirectOut && one.channel.unsent()) undelivered_.insert(one.rank);
    return one.closing;
  });
}

}  // namespace slip::transport
