// What of the switchboard goes on after a loss: messages between those who are left.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/switchboard.hpp"
#include "transport/socket/socket.hpp"

namespace slip {
namespace {

constexpr std::int64_t kMaxWaitNs = std::int64_t{3600} * 1'000'000'000;

}  // namespace

// `next_ns`: when somebody more will count as gone, if nothing else happens; it is only lowered.
std::set<int> Switchboard::gone_at(std::int64_t now, std::int64_t& next_ns) const {
  std::set<int> result;
  for (const Loss& loss : losses_) result.insert(loss.rank);
  for (const auto& [rank, when] : left_) {
    if (now - when >= kAfterLeavingNs) result.insert(rank);
    else next_ns = std::min(next_ns, when + kAfterLeavingNs);
  }
  return result;
}

std::set<int> Switchboard::gone() const {
  const std::lock_guard lock(mutex_);
  const std::int64_t now = now_ns();
  std::int64_t next = now + kMaxWaitNs;
  return gone_at(now, next);
}

void Switchboard::mention(const Loss& loss) {
  const std::lock_guard lock(mutex_);
  note_loss(loss);
  changed_.notify_all();
  wake_up_.signal();
}

// Two turns: the first one may have looked at the connections before.
void Switchboard::settle() {
  std::unique_lock lock(mutex_);
  for (int i = 0; i < 2; ++i) {
    wake_up_.signal();
    for (const std::uint64_t before = turns_; turns_ == before;) {
      require_not_aborted();
      changed_.wait_for(lock, std::chrono::nanoseconds(silence_ns_));
    }
  }
}

std::int64_t Switchboard::own_silence_ns() const {
  const std::lock_guard lock(mutex_);
  return own_silence_ns_;
}

bool Switchboard::is_lost(int rank) const {
  return std::any_of(losses_.begin(), losses_.end(), [&](const Loss& one) { return one.rank == rank; });
}

bool Switchboard::watch(int rank, const SocketAddress& at, std::int64_t deadline_ns) {
  const std::pair<int, SocketAddress> one(rank, at);
  watch_all({&one, 1}, deadline_ns);
  const std::lock_guard lock(mutex_);
  return !is_lost(rank);
}

void Switchboard::watch_all(std::span<const std::pair<int, SocketAddress>> ranks, std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  require_not_aborted();
  std::vector<int> strangers;
  std::vector<SocketAddress> addresses;
  for (const auto& [rank, at] : ranks) {
    if (is_lost(rank) || outgoing(rank)) continue;
    strangers.push_back(rank);
    addresses.push_back(at);
  }
  lock.unlock();
  const std::int64_t limit = now_ns() + silence_ns_;  // who does not take a connection is silent
  std::vector<Reached> reached =
      connect_all(addresses, {deadline_ns == 0 ? limit : std::min(limit, deadline_ns), abort_.get()});
  lock.lock();
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    const int rank = strangers[i];
    if (!reached[i].socket.valid())
      note_loss({rank, reached[i].silent ? Loss::Cause::kSilent : Loss::Cause::kEnded, self_.rank});
    if (is_lost(rank) || outgoing(rank)) continue;
    add_outgoing(FrameSocket(std::move(reached[i].socket), self_.session, FrameSocket::Side::kConnects), rank);
  }
  for (const auto& [rank, at] : ranks) {
    Link* const link = is_lost(rank) ? nullptr : outgoing(rank);
    if (!link || link->watched) continue;
    link->watched = true;
    link->heard_ns = now_ns();
    link->channel.queue({.kind = FrameKind::kPing, .rank = self_.rank, .nranks = self_.nranks});
  }
  wake_up_.signal();
}

bool Switchboard::post(int rank, std::uint64_t tag, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  require_not_aborted();
  Link* const link = outgoing(rank);
  if (!link) return false;
  link->channel.queue({.kind = FrameKind::kMessage, .rank = self_.rank, .tag = tag, .nranks = self_.nranks}, bytes);
  wake_up_.signal();
  return true;
}

std::optional<Switchboard::Letter> Switchboard::next_letter(std::uint64_t tag, std::size_t known,
                                                            std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  for (;;) {
    require_not_aborted();
    const auto found =
        std::find_if(mail_.begin(), mail_.end(), [&](const auto& one) { return one.first.second == tag; });
    if (found != mail_.end()) {
      Letter letter{found->first.first, std::move(found->second.front())};
      found->second.pop_front();
      if (found->second.empty()) mail_.erase(found);
      return letter;
    }
    const std::int64_t now = now_ns();
    std::int64_t until = deadline_ns == 0 ? now + kMaxWaitNs : std::min(deadline_ns, now + kMaxWaitNs);
    if (gone_at(now, until).size() != known || (deadline_ns != 0 && now >= deadline_ns)) return std::nullopt;
    changed_.wait_for(lock, std::chrono::nanoseconds(until - now));
  }
}

void Switchboard::on_loss(std::shared_ptr<AbortFlag> set) {
  const std::lock_guard lock(mutex_);
  at_loss_ = std::move(set);
}

void Switchboard::watch_no_longer() {
  const std::lock_guard lock(mutex_);
  for (Link& link : links_) link.watched = false;
}

}  // namespace slip
