// What of the switchboard goes on after a loss: messages between those who are left.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "slip/error.hpp"
#include "transport/switchboard.hpp"

namespace slip {
namespace {

constexpr std::int64_t kLongestWaitNs = std::int64_t{3600} * 1'000'000'000;

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
  std::int64_t next = now + kLongestWaitNs;
  return gone_at(now, next);
}

void Switchboard::mention(const Loss& loss) {
  const std::lock_guard lock(mutex_);
  note_loss(loss);
  changed_.notify_all();
  wake_up_.signal();
}

bool Switchboard::watch(int rank, const SocketAddress& at, std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const auto is_lost = [&] {
    return std::any_of(losses_.begin(), losses_.end(), [&](const Loss& one) { return one.rank == rank; });
  };
  require_not_aborted();
  if (is_lost()) return false;
  if (!outgoing(rank)) {
    lock.unlock();
    Socket socket;
    std::optional<Loss::Cause> cause;
    try {
      const std::int64_t limit = now_ns() + silence_ns_;  // who does not take a connection is silent
      socket = Socket::connect(at, {deadline_ns == 0 ? limit : std::min(limit, deadline_ns), abort_.get()});
    } catch (const Error& error) {
      if (error.code() == Code::kAborted) throw;
      cause = error.code() == Code::kTimeout ? Loss::Cause::kSilent : Loss::Cause::kEnded;
    }
    lock.lock();
    if (cause) note_loss({rank, *cause, self_.rank});
    if (is_lost()) return false;
    if (!outgoing(rank)) {
      links_.push_back({FrameSocket(std::move(socket), self_.session), Role::kDirectOut, rank, now_ns()});
      links_.back().channel.trust();
      links_.back().channel.queue({.kind = FrameKind::kGreetDirect, .rank = self_.rank, .nranks = self_.nranks});
    }
  }
  Link& link = *outgoing(rank);
  if (!link.watched) {
    link.watched = true;
    link.heard_ns = now_ns();
    link.channel.queue({.kind = FrameKind::kPing, .rank = self_.rank, .nranks = self_.nranks});
  }
  wake_up_.signal();
  return true;
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
    std::int64_t until = deadline_ns == 0 ? now + kLongestWaitNs : std::min(deadline_ns, now + kLongestWaitNs);
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
