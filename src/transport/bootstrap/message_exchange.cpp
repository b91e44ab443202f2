#include "transport/bootstrap/message_exchange.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "transport/job/placement.hpp"

namespace slip::transport {

std::vector<int> MessageExchange::missing(std::uint64_t gathering) const {
  std::vector<int> result;
  for (int rank = 0; rank < context_.self.nranks; ++rank) {
    if (rank != context_.self.rank && !pieces_.contains({gathering, rank})) result.push_back(rank);
  }
  return result;
}

std::optional<int> MessageExchange::in_another_call(std::uint64_t gathering, SetupKind call) const {
  for (auto piece = pieces_.lower_bound({gathering, 0}); piece != pieces_.end() && piece->first.first == gathering;
       ++piece) {
    if (piece->second.call != call) return piece->first.second;
  }
  return std::nullopt;
}

void MessageExchange::gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call) {
  const std::string self = context_.self.text();
  const auto nranks = static_cast<std::size_t>(context_.self.nranks);
  if (table.size() != nranks * bytes_per_rank || bytes_per_rank > kMaxBody)
    base::fail(ErrorCode::kInvalidValue, {},
               "{}: a table of {} bytes for {} bytes of each rank: it must have {} bytes, and at most {} for each rank",
               self, table.size(), bytes_per_rank, nranks * bytes_per_rank, kMaxBody);
  const base::LockGuard lock(context_.mutex());
  const std::uint64_t gathering = ++gatherings_;
  FrameHeader header = context_.header(FrameKind::kPiece, gathering);
  header.call = call.kind;
  connections_.pass_on(header,
                       table.subspan(static_cast<std::size_t>(context_.self.rank) * bytes_per_rank, bytes_per_rank));
  // A rank that left without sending its piece: its piece would have arrived before the notification of its departure.
  std::optional<int> absent;
  std::optional<int> elsewhere;  // a rank that is in another call
  const bool in_time = failures_.wait_until(call.deadline_ns, [&]() SLIP_REQUIRES(control_mutex) {
    if ((elsewhere = in_another_call(gathering, call.kind))) return true;
    const std::vector<int> ranks = missing(gathering);
    const auto found = std::ranges::find_if(
        ranks, [&](int rank) SLIP_REQUIRES(control_mutex) { return failures_.left_at(rank).has_value(); });
    if (found != ranks.end()) absent = *found;
    return ranks.empty() || absent;
  });
  const std::string what =
      call.kind == SetupKind::kOther ? fmt::format("all-gather {}", gathering) : std::string(setup_name(call.kind));
  if (elsewhere)
    base::fail(ErrorCode::kMismatch, {},
               "{}: it called {}, rank {} called {}: all ranks of a communicator must make the same calls "
               "in the same order",
               self, what, *elsewhere, setup_name(pieces_[{gathering, *elsewhere}].call));
  if (absent) failures_.require_whole();  // if the rank left because of a loss, throws that loss
  if (absent) base::fail(ErrorCode::kRankLost, {}, "{}: rank {} has left before {}", self, *absent, what);
  if (!in_time)
    base::fail(ErrorCode::kTimeout, {}, "{}: {} not joined {} before the deadline", self,
               rank_list(missing(gathering)) + (missing(gathering).size() == 1 ? " has" : " have"), what);
  copy_pieces(gathering, table, bytes_per_rank);
}

void MessageExchange::copy_pieces(std::uint64_t gathering, std::span<std::byte> table, std::size_t bytes_per_rank) {
  for (int rank = 0; rank < context_.self.nranks; ++rank) {
    if (rank == context_.self.rank) continue;
    const std::vector<std::byte> piece = std::move(pieces_.extract({gathering, rank}).mapped().bytes);
    if (piece.size() != bytes_per_rank)
      base::fail(ErrorCode::kInvalidValue, {},
                 "{}: rank {} sent {} bytes for all-gather {}, and this rank {}: the calls do not match",
                 context_.self.text(), rank, piece.size(), gathering, bytes_per_rank);
    std::ranges::copy(piece, table.subspan(static_cast<std::size_t>(rank) * bytes_per_rank).begin());
  }
}

void MessageExchange::connect_to(int rank, const SocketAddress& to, std::int64_t deadline_ns) {
  if (connections_.outgoing(rank)) return;
  std::optional<FrameSocket> channel;
  try {
    const base::LockPause unlocked(context_.mutex());
    channel.emplace(FrameSocket::reach_in_time(to, context_.session, {deadline_ns, &failures_.broken_flag()}));
  } catch (const Error& error) {
    failures_.require_whole();  // if a rank is lost, throw that: it is the cause
    const std::string self = context_.self.text();
    if (error.code() == ErrorCode::kTimeout)
      base::fail(ErrorCode::kTimeout, {}, "{}: rank {} did not accept a connection before the deadline: {}", self, rank,
                 error.what());
    if (error.code() != ErrorCode::kIo) throw;
    base::fail(ErrorCode::kRankLost, {}, "{}: rank {} is gone or has left: {}", self, rank, error.what());
  }
  // Another thread may have connected to the rank meanwhile.
  if (!connections_.outgoing(rank)) connections_.add_outgoing(std::move(*channel), rank);
}

void MessageExchange::send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SocketAddress& to,
                           std::int64_t deadline_ns) {
  const std::string self = context_.self.text();
  if (bytes.size() > kMaxBody)
    base::fail(ErrorCode::kInvalidValue, {}, "{}: a message of {} bytes: at most {} are possible", self, bytes.size(),
               kMaxBody);
  const base::LockGuard lock(context_.mutex());
  failures_.require_whole();
  if (rank == context_.self.rank) {
    add_message(rank, tag, {bytes.begin(), bytes.end()});
    context_.changed.notify_all();
    return;
  }
  connect_to(rank, to, deadline_ns);
  connections_.outgoing(rank)->channel.queue(context_.header(FrameKind::kMessage, tag), bytes);
  context_.wake_up.signal();
  const auto taken = [&]() SLIP_REQUIRES(control_mutex) {
    const ControlConnection* connection = connections_.outgoing(rank);
    return !connection || !connection->channel.unsent();
  };
  if (!failures_.wait_until(deadline_ns, taken))
    base::fail(ErrorCode::kTimeout, {}, "{}: rank {} at {} did not take {} bytes with tag {} before the deadline", self,
               rank, to.text(), bytes.size(), tag);
  if (!connections_.has_undelivered(rank)) return;
  failures_.require_whole();
  base::fail(ErrorCode::kRankLost, {}, "{}: rank {} has left before tag {} reached it", self, rank, tag);
}

std::string MessageExchange::other_tags(int rank) const {
  std::string result;
  for (const auto& [key, messages] : messages_) {
    if (key.first == rank) result += fmt::format("{}{}", result.empty() ? "; there are tags " : ", ", key.second);
  }
  return result;
}

// REQUIRES: there is a message with this key.
std::vector<std::byte> MessageExchange::take(std::pair<int, std::uint64_t> key) {
  const auto found = messages_.find(key);
  std::vector<std::byte> result = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) messages_.erase(found);
  return result;
}

std::vector<std::byte> MessageExchange::recv(int rank, std::uint64_t tag, std::int64_t deadline_ns) {
  const std::pair key(rank, tag);
  const base::LockGuard lock(context_.mutex());
  const std::string self = context_.self.text();
  for (;;) {
    const std::optional<std::int64_t> left = failures_.left_at(rank);
    const std::int64_t gone_ns = left ? *left + FailureTable::kAfterLeavingNs : 0;  // 0: the rank has not left
    const bool gone_first = left && (deadline_ns == 0 || gone_ns < deadline_ns);
    const auto changed = [&]() SLIP_REQUIRES(control_mutex) {
      return messages_.contains(key) || left != failures_.left_at(rank);
    };
    const bool in_time = failures_.wait_until(gone_first ? gone_ns : deadline_ns, changed);
    if (messages_.contains(key)) return take(key);
    if (in_time) continue;  // the rank has left meanwhile
    if (gone_first) failures_.require_whole();
    if (gone_first)
      base::fail(ErrorCode::kRankLost, {}, "{}: rank {} has left without sending tag {}", self, rank, tag);
    base::fail(ErrorCode::kTimeout, {}, "{}: rank {} sent nothing with tag {} before the deadline{}", self, rank, tag,
               other_tags(rank));
  }
}

bool MessageExchange::post(int rank, std::uint64_t tag, std::span<const std::byte> bytes) {
  const base::LockGuard lock(context_.mutex());
  context_.require_not_aborted();
  ControlConnection* const connection = connections_.outgoing(rank);
  if (!connection) return false;
  connection->channel.queue(context_.header(FrameKind::kMessage, tag), bytes);
  context_.wake_up.signal();
  return true;
}

std::optional<ReceivedMessage> MessageExchange::next_message(std::uint64_t tag, std::size_t known_gone,
                                                             std::int64_t deadline_ns) {
  const base::LockGuard lock(context_.mutex());
  for (;;) {
    context_.require_not_aborted();
    const auto found = std::ranges::find_if(messages_, [&](const auto& one) { return one.first.second == tag; });
    if (found != messages_.end()) {
      const int rank = found->first.first;
      return ReceivedMessage{rank, take(found->first)};
    }
    const std::int64_t now = base::now_ns(), max = now + FailureTable::kMaxWaitNs;
    std::int64_t until = deadline_ns == 0 ? max : std::min(deadline_ns, max);
    if (failures_.gone_at(now, until).size() != known_gone || (deadline_ns != 0 && now >= deadline_ns))
      return std::nullopt;
    context_.changed.wait_for(context_.mutex(), std::chrono::nanoseconds(until - now));
  }
}

// Connects to all ranks at once, for at most half of the time: a host that is cut off must not take the time of the
// others. Does not wait for the proof of the secret, because a stopped rank never sends it.
void MessageExchange::connect_for_questions(std::span<const std::pair<int, SocketAddress>> ranks,
                                            std::int64_t deadline_ns) {
  std::vector<int> unconnected;
  std::vector<SocketAddress> addresses;
  for (const auto& [rank, address] : ranks) {
    if (connections_.outgoing(rank)) continue;
    unconnected.push_back(rank);
    addresses.push_back(address);
  }
  if (unconnected.empty()) return;
  const std::int64_t now = base::now_ns();
  const Deadline deadline{now + std::max<std::int64_t>(deadline_ns - now, 0) / 2, context_.abort.get()};
  std::vector<Reached> reached;
  try {
    const base::LockPause unlocked(context_.mutex());
    reached = connect_all(addresses, deadline);
  } catch (const Error&) {  // aborted: the connected ranks are asked all the same
    reached.resize(addresses.size());
  }
  for (std::size_t i = 0; i < unconnected.size(); ++i) {
    // Another thread may have connected to the rank meanwhile.
    if (!reached[i].socket.valid() || connections_.outgoing(unconnected[i])) continue;
    connections_.add_outgoing(FrameSocket(std::move(reached[i].socket), context_.session, FrameSocket::Side::kConnects),
                              unconnected[i]);
  }
}

// Each question uses a direct connection, so it does not depend on the ranks between the two.
std::map<int, std::vector<std::byte>> MessageExchange::ask(std::span<const std::pair<int, SocketAddress>> ranks,
                                                           std::int64_t deadline_ns) {
  std::map<int, std::vector<std::byte>> result;
  const base::LockGuard lock(context_.mutex());
  const std::uint64_t question = ++questions_;
  connect_for_questions(ranks, deadline_ns);
  for (const auto& [rank, address] : ranks) {
    ControlConnection* const connection = connections_.outgoing(rank);
    if (!connection) continue;  // this rank cannot be reached, so it is omitted
    answers_[{rank, question}] = std::nullopt;
    connection->channel.queue(context_.header(FrameKind::kAsk, question));
  }
  context_.wake_up.signal();
  const auto all_here = [&]() SLIP_REQUIRES(control_mutex) {
    return std::ranges::none_of(answers_, [&](const auto& one) { return one.first.second == question && !one.second; });
  };
  for (std::int64_t rest = 0; !all_here() && (rest = deadline_ns - base::now_ns()) > 0;)
    context_.changed.wait_for(context_.mutex(), std::chrono::nanoseconds(rest));
  for (const auto& [rank, address] : ranks) {
    auto found = answers_.extract({rank, question});
    // A rank without a monitor answers with no bytes: it has nothing to report.
    if (found && found.mapped() && !found.mapped()->empty()) result[rank] = std::move(*found.mapped());
  }
  return result;
}

}  // namespace slip::transport
