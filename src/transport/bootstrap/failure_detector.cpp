#include "transport/bootstrap/failure_detector.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/fail.hpp"

namespace slip::transport {
namespace {

constexpr std::int64_t kMaxGoodbyeNs = 10'000'000'000;

bool has_unacknowledged(const Socket& socket) {
  int bytes = 0;
  return ::ioctl(socket.descriptor(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

FailureDetector::FailureDetector(ControlContext& context, ConnectionTable& connections, FailureTable& failures,
                                 const Heartbeat& heartbeat)
    : context_(context),
      connections_(connections),
      failures_(failures),
      interval_ns_(std::chrono::nanoseconds(heartbeat.interval).count()),
      silence_ns_(std::chrono::nanoseconds(heartbeat.silence).count()) {
  if (interval_ns_ <= 0 || silence_ns_ <= interval_ns_)
    base::fail(ErrorCode::kInvalidValue, {},
               "a heartbeat every {} ms and a loss after {} ms: the second must be longer than the first",
               heartbeat.interval.count(), heartbeat.silence.count());
}

void FailureDetector::end_init() {
  const base::LockGuard lock(context_.mutex());
  if (!init_over_.insert(context_.self.rank).second) return;
  notify_init_over(context_.self.rank, nullptr);
  context_.wake_up.signal();
}

// Sends the notification in both directions of the ring, so that no single rank that stops or leaves can block it.
void FailureDetector::notify_init_over(int rank, const ControlConnection* except) {
  for (ControlConnection& one : connections_.all()) {
    if (!one.in_ring() || one.closing || &one == except) continue;
    one.channel.queue({.kind = FrameKind::kInitOver, .rank = rank, .nranks = context_.self.nranks});
  }
}

std::int64_t FailureDetector::goodbye_end_ns(std::int64_t now) const {
  const std::int64_t end = now + std::min(silence_ns_, kMaxGoodbyeNs);
  return init_over_everywhere() ? end : std::max(end, init_deadline_ns_);
}

void FailureDetector::watch_all(std::span<const std::pair<int, SocketAddress>> ranks, std::int64_t deadline_ns) {
  const base::LockGuard lock(context_.mutex());
  context_.require_not_aborted();
  std::vector<int> unconnected;
  std::vector<SocketAddress> addresses;
  for (const auto& [rank, at] : ranks) {
    if (failures_.is_lost(rank) || connections_.outgoing(rank)) continue;
    unconnected.push_back(rank);
    addresses.push_back(at);
  }
  std::vector<Reached> reached;
  {
    const base::LockPause unlocked(context_.mutex());
    // A rank that accepts no connection within silence_ns_ is silent.
    reached = connect_all(addresses, Deadline{deadline_ns, context_.abort.get()}.within(silence_ns_));
  }
  for (std::size_t i = 0; i < unconnected.size(); ++i) {
    const int rank = unconnected[i];
    if (!reached[i].socket.valid())
      failures_.add_loss({rank, reached[i].silent ? Loss::Cause::kSilent : Loss::Cause::kEnded, context_.self.rank});
    if (failures_.is_lost(rank) || connections_.outgoing(rank)) continue;
    connections_.add_outgoing(FrameSocket(std::move(reached[i].socket), context_.session, FrameSocket::Side::kConnects),
                              rank);
  }
  for (const auto& [rank, at] : ranks) {
    ControlConnection* const connection = failures_.is_lost(rank) ? nullptr : connections_.outgoing(rank);
    if (!connection || connection->watched) continue;
    connection->watched = true;
    connection->heard_ns = base::now_ns();
    connection->channel.queue(context_.header(FrameKind::kPing));
  }
  context_.wake_up.signal();
}

void FailureDetector::beat(std::int64_t now) {
  for (ControlConnection& one : connections_.all()) {
    if (!one.must_be_heard() || one.closing || now < lost_at_ns(one)) continue;
    failures_.add_loss({one.rank, Loss::Cause::kSilent, context_.self.rank});
    one.closing = true;  // also if the rank was known to be lost
    return;
  }
  if (now < next_beat_ns_) return;
  next_beat_ns_ = now + interval_ns_;
  for (ControlConnection& one : connections_.all()) {
    if (!one.must_be_heard() || one.closing) continue;
    // The last heartbeat is not acknowledged. On a lossy network, sending more heartbeats makes the kernel retransmit
    // it long before its own timer expires, which may take seconds.
    if (has_unacknowledged(one.channel.socket())) next_beat_ns_ = now + interval_ns_ / 4;
    if (one.channel.unsent()) continue;
    one.channel.queue(context_.header(one.watched ? FrameKind::kPing : FrameKind::kAlive));
  }
}

}  // namespace slip::transport
