// What ranks tell each other beside their work: why one failed, and what another is doing.
#include <algorithm>

#include "base/clock.hpp"
#include "transport/bootstrap/switchboard.hpp"

namespace slip {

void Switchboard::fail(Code code, std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (told_ || !losses_.empty()) return;  // what broke it is known already
  note_failure({self_.rank, code, std::string(text.substr(0, kMaxFailureText))});
  changed_.notify_all();
  wake_up_.signal();  // the thread sends what did not go at once
}

std::optional<RankFailure> Switchboard::failure() const {
  const std::lock_guard lock(mutex_);
  return told_;
}

bool Switchboard::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

void Switchboard::tell(Link& link, const RankFailure& failure) {
  link.channel.queue({.kind = FrameKind::kFailed,
                      .rank = failure.rank,
                      .tag = static_cast<std::uint64_t>(failure.code),
                      .nranks = self_.nranks},
                     bytes_of(std::string_view(failure.text)));
}

// Told on if it is news. A lower rank's takes the place of a higher one's, so all arrive at the same.
void Switchboard::note_failure(RankFailure failure) {
  if (told_ && told_->rank <= failure.rank) return;
  told_ = std::move(failure);
  for (Link& link : links_) {
    if (link.role != Role::kUnknown && !link.closing) tell(link, *told_);
  }
  note_trouble(told_->rank);
  broken_.set();
}

void Switchboard::note_trouble(int rank) {
  if (at_trouble_ && trouble_of_.contains(rank)) at_trouble_->set();
}

void Switchboard::on_trouble(std::shared_ptr<AbortFlag> set, std::set<int> ranks) {
  const std::lock_guard lock(mutex_);
  at_trouble_ = std::move(set);
  trouble_of_ = std::move(ranks);
  for (const Loss& loss : losses_) note_trouble(loss.rank);
  if (told_) note_trouble(told_->rank);
}

void Switchboard::set_witness(std::shared_ptr<Witness> witness) {
  const std::lock_guard lock(mutex_);
  witness_ = std::move(witness);
}

// Often enough to say when something ended, and too rarely to cost anything.
void Switchboard::look(std::int64_t now) {
  if (!witness_ || now < next_look_ns_) return;
  witness_->look();
  next_look_ns_ = now + interval_ns_ / 4;
}

void Switchboard::answer(Link& link, const Frame& frame) {
  link.channel.queue({.kind = FrameKind::kAnswer, .rank = self_.rank, .tag = frame.header.tag, .nranks = self_.nranks},
                     witness_ ? witness_->answer() : std::vector<std::byte>());
}

// A rank that is stopped gives no proof, and the others are still to be asked.
void Switchboard::begin_to_connect(std::unique_lock<std::mutex>& lock, int rank, const SocketAddress& to,
                                   std::int64_t deadline_ns) {
  if (outgoing(rank)) return;
  lock.unlock();
  Socket socket;
  try {
    socket = Socket::connect(to, {deadline_ns, abort_.get()});
  } catch (const Error&) {
    lock.lock();
    throw;
  }
  lock.lock();
  if (!outgoing(rank)) add_outgoing(FrameSocket(std::move(socket), self_.session, FrameSocket::Side::kConnects), rank);
}

// By a connection of its own to each, so that nobody between them is needed.
std::map<int, std::vector<std::byte>> Switchboard::ask(std::span<const std::pair<int, SocketAddress>> ranks,
                                                       std::int64_t deadline_ns) {
  std::map<int, std::vector<std::byte>> result;
  std::unique_lock lock(mutex_);
  const std::uint64_t question = ++questions_;
  for (const auto& [rank, address] : ranks) {
    try {
      begin_to_connect(lock, rank, address, deadline_ns);
    } catch (const Error&) {
      continue;  // gives no answer
    }
    answers_[{rank, question}] = {};
    outgoing(rank)->channel.queue(
        {.kind = FrameKind::kAsk, .rank = self_.rank, .tag = question, .nranks = self_.nranks});
  }
  wake_up_.signal();
  const auto all_here = [&] {
    return std::ranges::none_of(answers_,
                                [&](const auto& one) { return one.first.second == question && one.second.empty(); });
  };
  for (std::int64_t rest = 0; !all_here() && (rest = deadline_ns - now_ns()) > 0;)
    changed_.wait_for(lock, std::chrono::nanoseconds(rest));
  for (const auto& [rank, address] : ranks) {
    auto found = answers_.extract({rank, question});
    if (found && !found.mapped().empty()) result[rank] = std::move(found.mapped());
  }
  return result;
}

}  // namespace slip
