// The caller's side of the switchboard; the thread's is switchboard_loop.cpp.
#include "transport/bootstrap/switchboard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/root.hpp"

namespace slip {
namespace {

constexpr std::int64_t kMaxWaitNs = std::int64_t{3600} * 1'000'000'000;

std::int64_t nanoseconds(std::chrono::milliseconds time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

std::string Loss::text() const {
  switch (cause) {
    case Cause::kEnded:
      return fmt::format("rank {} is gone: its connection to rank {} closed; its process ended or was killed", rank,
                         noticed_by);
    case Cause::kSilent:
      return fmt::format("rank {} gives no sign of life: noticed by rank {}; it is stopped, or cut off", rank,
                         noticed_by);
    case Cause::kAborted: break;
  }
  return fmt::format("rank {} aborted", rank);
}

Switchboard::Switchboard(const Self& self, Socket listener, std::shared_ptr<AbortFlag> abort,
                         const Heartbeat& heartbeat)
    : self_(self),
      abort_(std::move(abort)),
      interval_ns_(nanoseconds(heartbeat.interval)),
      silence_ns_(nanoseconds(heartbeat.silence)),
      listener_(std::move(listener)) {
  if (interval_ns_ <= 0 || silence_ns_ <= interval_ns_)
    throw Error(Code::kInvalidValue,
                fmt::format("a heartbeat every {} ms and a loss after {} ms: the second must be longer than the first",
                            heartbeat.interval.count(), heartbeat.silence.count()),
                {});
  thread_.start("slip-bootstrap", [this] { live(); });
}

Switchboard::~Switchboard() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  wake_up_.signal();
  thread_.join();
}

std::string Switchboard::name() const { return fmt::format("rank {} of {}", self_.rank, self_.nranks); }

std::vector<Loss> Switchboard::losses() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

void Switchboard::require_not_aborted() const {
  if (!failure_.empty()) throw Error(Code::kIo, fmt::format("{}: {}", name(), failure_), {});
  if (abort_->is_set()) throw Error(Code::kAborted, fmt::format("{}: aborted from another thread", name()), {});
}

void Switchboard::require_whole() const {
  require_not_aborted();
  if (told_) throw Error(told_->code, fmt::format("{}: {}", name(), told_->text), {});
  if (losses_.empty()) return;
  const Loss& first = losses_.front();
  throw Error(first.code(), fmt::format("{}: {}", name(), first.text()), {});
}

void Switchboard::throw_if_broken() const {
  const std::lock_guard lock(mutex_);
  require_whole();
}

template <class Ready>
bool Switchboard::wait_until(std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const Ready& ready) {
  for (;;) {
    if (ready()) return true;
    require_whole();
    const std::int64_t rest = deadline_ns == 0 ? kMaxWaitNs : deadline_ns - now_ns();
    if (rest <= 0) return false;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(rest, kMaxWaitNs)));
  }
}

void Switchboard::join_ring(FrameSocket to_successor, std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  links_.push_back({std::move(to_successor), Role::kSuccessor, successor(), now_ns()});
  Link& link = links_.back();
  link.channel.trust();
  link.channel.queue({.kind = FrameKind::kGreetRing, .rank = self_.rank, .nranks = self_.nranks});
  joined_ = true;
  for (const Frame& frame : for_successor_) pass_on(frame.header, frame.body);
  for_successor_.clear();
  for (const Loss& loss : losses_) tell(link, loss);
  if (told_) tell(link, *told_);
  wake_up_.signal();
  const auto left = [this] { return left_.contains(predecessor()) && !predecessor_came_; };
  if (wait_until(lock, deadline_ns, [&] { return predecessor_came_ || left(); }) && !left()) return;
  require_whole();
  throw Error(left() ? Code::kRankLost : Code::kTimeout,
              fmt::format("{}: rank {}, its predecessor in the ring, {}", name(), predecessor(),
                          left() ? "has left" : "came to the root but did not connect before the deadline"),
              {});
}

std::vector<int> Switchboard::missing(std::uint64_t round) const {
  std::vector<int> result;
  for (int rank = 0; rank < self_.nranks; ++rank) {
    if (rank != self_.rank && !pieces_.contains({round, rank})) result.push_back(rank);
  }
  return result;
}

std::optional<int> Switchboard::in_another_call(std::uint64_t round, SetupKind call) const {
  for (auto piece = pieces_.lower_bound({round, 0}); piece != pieces_.end() && piece->first.first == round; ++piece) {
    if (piece->second.call != call) return piece->first.second;
  }
  return std::nullopt;
}

void Switchboard::gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call) {
  const auto nranks = static_cast<std::size_t>(self_.nranks);
  if (table.size() != nranks * bytes_per_rank || bytes_per_rank > kMaxBody)
    throw Error(Code::kInvalidValue,
                fmt::format("{}: a table of {} bytes for {} bytes of each rank: it must have {}, at most {} each",
                            name(), table.size(), bytes_per_rank, nranks * bytes_per_rank, kMaxBody),
                {});
  const auto slot = [&](int rank) {
    return table.subspan(static_cast<std::size_t>(rank) * bytes_per_rank, bytes_per_rank);
  };
  std::unique_lock lock(mutex_);
  const std::uint64_t round = ++rounds_;
  pass_on({.kind = FrameKind::kPiece, .call = call.kind, .rank = self_.rank, .tag = round, .nranks = self_.nranks},
          slot(self_.rank));
  std::optional<int> absent;  // left without having given its piece, which would have come before the news
  std::optional<int> astray;  // is in another call
  const bool in_time = wait_until(lock, call.deadline_ns, [&] {
    if ((astray = in_another_call(round, call.kind))) return true;
    const std::vector<int> ranks = missing(round);
    const auto found = std::find_if(ranks.begin(), ranks.end(), [&](int rank) { return left_.contains(rank); });
    if (found != ranks.end()) absent = *found;
    return ranks.empty() || absent;
  });
  const std::string what =
      call.kind == SetupKind::kOther ? fmt::format("gathering {}", round) : std::string(setup_name(call.kind));
  if (astray)
    throw Error(Code::kMismatch,
                fmt::format("{}: it called {}, rank {} called {}: all ranks of a communicator must make the same calls "
                            "in the same order",
                            name(), what, *astray, setup_name(pieces_[{round, *astray}].call)),
                {});
  if (absent) require_whole();  // it may have left because of a loss, which was told before
  if (absent) throw Error(Code::kRankLost, fmt::format("{}: rank {} has left before {}", name(), *absent, what), {});
  if (!in_time)
    throw Error(Code::kTimeout,
                fmt::format("{}: {} not come to {} before the deadline", name(),
                            rank_list(missing(round)) + (missing(round).size() == 1 ? " has" : " have"), what),
                {});
  for (int rank = 0; rank < self_.nranks; ++rank) {
    if (rank == self_.rank) continue;
    const std::vector<std::byte> piece = std::move(pieces_.extract({round, rank}).mapped().bytes);
    if (piece.size() != bytes_per_rank)
      throw Error(Code::kInvalidValue,
                  fmt::format("{}: rank {} gave {} bytes to gathering {}, this rank {}: the calls do not match", name(),
                              rank, piece.size(), round, bytes_per_rank),
                  {});
    std::copy(piece.begin(), piece.end(), slot(rank).begin());
  }
}

Switchboard::Link* Switchboard::outgoing(int rank) {
  for (Link& link : links_) {
    if (link.role == Role::kDirectOut && link.rank == rank && !link.closing) return &link;
  }
  return nullptr;
}

void Switchboard::connect_to(std::unique_lock<std::mutex>& lock, int rank, const SocketAddress& to,
                             std::int64_t deadline_ns) {
  if (outgoing(rank)) return;
  lock.unlock();
  std::optional<FrameSocket> channel;
  try {
    channel.emplace(FrameSocket::reach_in_time(to, self_.session, {deadline_ns, &broken_}));
  } catch (const Error& error) {
    lock.lock();
    require_whole();  // a loss explains more
    if (error.code() == Code::kTimeout)
      throw Error(Code::kTimeout,
                  fmt::format("{}: rank {} takes no connection before the deadline: {}", name(), rank, error.what()),
                  {});
    if (error.code() != Code::kIo) throw;
    throw Error(Code::kRankLost, fmt::format("{}: rank {} is gone or has left: {}", name(), rank, error.what()), {});
  }
  lock.lock();
  if (!outgoing(rank)) add_outgoing(std::move(*channel), rank);  // another thread may have been quicker
}

void Switchboard::add_outgoing(FrameSocket channel, int rank) {
  links_.push_back({std::move(channel), Role::kDirectOut, rank, now_ns()});
  links_.back().channel.trust();
  links_.back().channel.queue({.kind = FrameKind::kGreetDirect, .rank = self_.rank, .nranks = self_.nranks});
}

void Switchboard::send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SocketAddress& to,
                       std::int64_t deadline_ns) {
  if (bytes.size() > kMaxBody)
    throw Error(Code::kInvalidValue,
                fmt::format("{}: a message of {} bytes: at most {} are possible", name(), bytes.size(), kMaxBody), {});
  std::unique_lock lock(mutex_);
  require_whole();
  if (rank == self_.rank) {
    mail_[{rank, tag}].emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
    return;
  }
  connect_to(lock, rank, to, deadline_ns);
  outgoing(rank)->channel.queue({.kind = FrameKind::kMessage, .rank = self_.rank, .tag = tag, .nranks = self_.nranks},
                                bytes);
  wake_up_.signal();
  const auto taken = [&] {
    const Link* link = outgoing(rank);
    return !link || !link->channel.unsent();
  };
  if (!wait_until(lock, deadline_ns, taken))
    throw Error(Code::kTimeout,
                fmt::format("{}: rank {} at {} did not take {} bytes with tag {} before the deadline", name(), rank,
                            to.text(), bytes.size(), tag),
                {});
  if (undelivered_.contains(rank)) require_whole();
  if (undelivered_.contains(rank))
    throw Error(Code::kRankLost, fmt::format("{}: rank {} has left before tag {} reached it", name(), rank, tag), {});
}

std::string Switchboard::other_tags(int rank) const {
  std::string result;
  for (const auto& [key, messages] : mail_) {
    if (key.first == rank) result += fmt::format("{}{}", result.empty() ? "; there are tags " : ", ", key.second);
  }
  return result;
}

std::vector<std::byte> Switchboard::recv(int rank, std::uint64_t tag, std::int64_t deadline_ns) {
  const std::pair key(rank, tag);
  std::unique_lock lock(mutex_);
  const auto gone = [&] { return left_.contains(rank) && now_ns() - left_[rank] >= kAfterLeavingNs; };
  bool here = false;
  while (!here && !gone()) {
    std::int64_t limit = deadline_ns;
    const bool knew = left_.contains(rank);
    if (knew && (limit == 0 || limit > left_[rank] + kAfterLeavingNs)) limit = left_[rank] + kAfterLeavingNs;
    const auto news = [&] {
      here = mail_.contains(key);
      return here || knew != left_.contains(rank);
    };
    if (!wait_until(lock, limit, news) && !gone()) break;
  }
  if (here) {
    auto found = mail_.find(key);
    std::vector<std::byte> result = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) mail_.erase(found);
    return result;
  }
  if (gone()) require_whole();
  if (gone())
    throw Error(Code::kRankLost, fmt::format("{}: rank {} has left without sending tag {}", name(), rank, tag), {});
  throw Error(
      Code::kTimeout,
      fmt::format("{}: rank {} sent nothing with tag {} before the deadline{}", name(), rank, tag, other_tags(rank)),
      {});
}

}  // namespace slip
