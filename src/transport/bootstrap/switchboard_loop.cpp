// The thread's side of the switchboard: it waits for all connections at once and does what each asks for.
#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "base/clock.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/switchboard.hpp"

namespace slip {
namespace {

// To say which rank one is, once connected: long, for a bad network may deliver it late. The number of such guests is
// limited.
constexpr std::int64_t kGreetingLimitNs = 60'000'000'000;
constexpr std::int64_t kFarewellLimitNs = 1'000'000'000;
constexpr std::int64_t kCrowdedPauseNs = 10'000'000;

bool has_unacknowledged(const Socket& socket) {
  int bytes = 0;
  return ::ioctl(socket.descriptor(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

void Switchboard::live() {
  std::string failure;
  try {
    for (bool over = false; !over;) {
      wait_for_something();
      const std::lock_guard lock(mutex_);
      turn();
      over = farewell_over(now_ns());
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::lock_guard lock(mutex_);
  links_.clear();
  if (failure.empty()) return;
  failure_ = "the thread of its connections ended: " + failure;
  broken_.set();
  changed_.notify_all();
}

void Switchboard::wait_for_something() {
  std::vector<pollfd> watched;
  std::vector<Link*> links;  // stay where they are: only this thread takes them away
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = now_ns();
    planned_ns_ = next_beat_ns_ == 0 ? now : next_beat_ns_;
    if (farewell_end_ns_ != 0) planned_ns_ = std::min(planned_ns_, farewell_end_ns_);
    else if (reason_end_ns_ != 0) planned_ns_ = std::min(planned_ns_, reason_end_ns_);
    if (witness_) planned_ns_ = std::min(planned_ns_, std::max(next_look_ns_, now));
    if (crowded_) planned_ns_ = std::min(planned_ns_, now + kCrowdedPauseNs);
    watched.push_back({wake_up_.descriptor(), POLLIN, 0});
    watched.push_back({abort_noted_ ? -1 : abort_->descriptor(), POLLIN, 0});
    watched.push_back({crowded_ ? -1 : listener_.descriptor(), POLLIN, 0});
    for (Link& link : links_) {
      const short events = link.channel.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
      watched.push_back({link.channel.socket().descriptor(), events, 0});
      links.push_back(&link);
      const std::int64_t limit = link.role == Role::kUnknown ? kGreetingLimitNs : silence_ns_;
      if (link.role == Role::kUnknown || link.must_be_heard())
        planned_ns_ = std::min(planned_ns_, link.heard_ns + limit);
    }
  }
  const std::int64_t rest = std::max<std::int64_t>(0, (planned_ns_ - now_ns() + 999'999) / 1'000'000);
  static_cast<void>(::poll(watched.data(), watched.size(), static_cast<int>(std::min<std::int64_t>(rest, 1 << 30))));
  if (watched[0].revents != 0) wake_up_.drain();
  for (std::size_t i = 0; i < links.size(); ++i) links[i]->ready = watched[i + 3].revents;
}

void Switchboard::turn() {
  const std::int64_t now = now_ns();
  note_suspension(now);
  note_own_silence(now);
  if (abort_->is_set() && !abort_noted_) {
    abort_noted_ = true;
    note_loss({self_.rank, Loss::Cause::kAborted, self_.rank});
  }
  // Last: nobody listens to what comes behind a farewell.
  if (leaving_ && farewell_end_ns_ == 0 && !owes_reason(now)) begin_farewell(now);
  accept_all(now);
  for (Link& link : links_) serve(link, now);
  beat(now);
  look(now);
  close_links(now);
  ++turns_;
  changed_.notify_all();
}

// This process may have been stopped with all the others and continued: their silence was its own.
void Switchboard::note_suspension(std::int64_t now) {
  if (planned_ns_ == 0 || now - planned_ns_ < interval_ns_) return;
  for (Link& link : links_) link.heard_ns = now;
}

// What others believe of this rank it knows by its own clock, even if their word does not reach it.
void Switchboard::note_own_silence(std::int64_t now) {
  if (next_beat_ns_ == 0) return;
  const std::int64_t silence = now - (next_beat_ns_ - interval_ns_);
  if (silence >= silence_ns_) own_silence_ns_ = std::max(own_silence_ns_, silence);
}

void Switchboard::accept_all(std::int64_t now) {
  crowded_ = false;
  while (listener_.valid()) {
    int error = 0;
    std::optional<Socket> socket = listener_.try_accept(error);
    crowded_ = error != 0;  // no descriptors left: look again in a moment
    if (crowded_) drop_a_guest();
    if (!socket) return;
    if (!socket->same_user()) continue;
    links_.push_back(
        {FrameSocket(std::move(*socket), self_.session, FrameSocket::Side::kAccepts), Role::kUnknown, -1, now, POLLIN});
    const auto guests = std::ranges::count_if(links_, [](const Link& link) { return link.role == Role::kUnknown; });
    if (has_too_many_guests(static_cast<std::size_t>(guests))) drop_a_guest();
  }
}

// Many who connect and say nothing must not keep the others out: the one that has been silent longest goes, and one
// that said something only if there is no other.
void Switchboard::drop_a_guest() {
  const auto unknown = [](const Link& link) { return link.role == Role::kUnknown; };
  auto dropped =
      std::ranges::find_if(links_, [&](const Link& link) { return unknown(link) && !link.channel.has_spoken(); });
  if (dropped == links_.end()) dropped = std::ranges::find_if(links_, unknown);
  if (dropped != links_.end()) links_.erase(dropped);
}

void Switchboard::serve(Link& link, std::int64_t now) {
  if (link.ready & POLLOUT) link.channel.flush();
  if (!(link.ready & ~POLLOUT)) return;
  link.ready = 0;
  link.channel.pump();
  while (!link.closing || leaving_) {
    std::optional<Frame> frame = link.channel.next();
    if (!frame) break;
    if (link.role != Role::kUnknown) link.heard_ns = now;
    handle(link, *frame);
  }
  if (!link.channel.ended() && !link.channel.stranger()) return;
  // A rank that was proven and then closes without a farewell is gone. Before that it may have been one guest too many.
  const bool was_known = link.role != Role::kUnknown && (link.channel.is_proven() || link.watched);
  if (was_known && !link.closing && !leaving_) note_loss({link.rank, Loss::Cause::kEnded, self_.rank});
  link.closing = true;
}

void Switchboard::handle(Link& link, Frame& frame) {
  if (link.role == Role::kUnknown) return handle_greeting(link, frame);
  const FrameHeader& header = frame.header;
  switch (header.kind) {
    case FrameKind::kMessage: mail_[{link.rank, header.tag}].push_back(std::move(frame.body)); break;
    case FrameKind::kPiece:
      if (header.rank != successor()) pass_on(header, frame.body);
      pieces_[{header.tag, header.rank}] = {header.call, std::move(frame.body)};
      break;
    case FrameKind::kLost: handle_lost(frame); break;
    case FrameKind::kLeft: handle_left(link, frame); break;
    case FrameKind::kFailed:
      note_failure({header.rank, static_cast<Code>(header.tag), frame.text().substr(0, kMaxFailureText)});
      break;
    case FrameKind::kAsk: answer(link, frame); break;
    case FrameKind::kAnswer:
      if (const auto found = answers_.find({link.rank, header.tag}); found != answers_.end())
        found->second = std::move(frame.body);
      break;
    case FrameKind::kPing:
      link.channel.queue({.kind = FrameKind::kAlive, .rank = self_.rank, .nranks = self_.nranks});
      break;
    default: break;  // a heartbeat
  }
}

void Switchboard::handle_greeting(Link& link, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const bool known =
      header.nranks == self_.nranks && header.rank >= 0 && header.rank < self_.nranks && header.rank != self_.rank;
  const bool ring = header.kind == FrameKind::kGreetRing && header.rank == predecessor() && !predecessor_came_;
  if (!known || (!ring && header.kind != FrameKind::kGreetDirect)) {
    link.closing = true;
    return;
  }
  link.role = ring ? Role::kPredecessor : Role::kDirectIn;
  link.rank = header.rank;
  link.channel.trust();
  predecessor_came_ = predecessor_came_ || ring;
  // A rank that was given up and does not know it would wait for answers until its deadline. The predecessor may have
  // heard nothing yet, and this rank may be about to leave because of the loss: it would be taken for the lost one.
  for (const Loss& loss : losses_) {
    if (ring || loss.rank == link.rank) tell(link, loss);
  }
  if (ring && told_) tell(link, *told_);
}

// The news goes the way of the pieces, so that whoever gets it has all pieces that this rank gave.
void Switchboard::handle_left(Link& link, const Frame& frame) {
  const int rank = frame.header.rank;
  if (rank == link.rank) link.closing = true;
  if (rank == link.rank && link.watched) left_.emplace(rank, now_ns());
  if (link.role != Role::kPredecessor || left_.contains(rank)) return;
  left_[rank] = now_ns();
  somebody_left_.store(true, std::memory_order_release);  // release: pairs with somebody_left()
  if (rank != successor()) pass_on(frame.header, {});
}

void Switchboard::pass_on(const FrameHeader& header, std::span<const std::byte> body) {
  if (!joined_) for_successor_.push_back({header, {body.begin(), body.end()}});
  for (Link& link : links_) {
    if (link.role == Role::kSuccessor && !link.closing) link.channel.queue(header, body);
  }
}

void Switchboard::handle_lost(const Frame& frame) {
  LostBody body;
  if (read_body(frame.body, body))
    note_loss({frame.header.rank, static_cast<Loss::Cause>(body.cause), body.noticed_by});
}

void Switchboard::tell(Link& link, const Loss& loss) {
  const LostBody body{static_cast<std::int32_t>(loss.cause), loss.noticed_by};
  link.channel.queue({.kind = FrameKind::kLost, .rank = loss.rank, .nranks = self_.nranks}, bytes_of(body));
}

// Told to all that this rank has a connection with; each tells it on if it is news.
void Switchboard::note_loss(const Loss& loss) {
  const bool known =
      std::any_of(losses_.begin(), losses_.end(), [&](const Loss& one) { return one.rank == loss.rank; });
  if (known) return;
  losses_.push_back(loss);
  for (Link& link : links_) {
    if (link.role == Role::kUnknown) continue;
    tell(link, loss);
    if (link.rank == loss.rank && loss.cause != Loss::Cause::kAborted) link.closing = true;
  }
  if (at_loss_) at_loss_->set();
  note_trouble(loss.rank);
  broken_.set();
}

void Switchboard::beat(std::int64_t now) {
  for (const Link& link : links_) {
    if (link.must_be_heard() && !link.closing && now - link.heard_ns >= silence_ns_)
      return note_loss({link.rank, Loss::Cause::kSilent, self_.rank});
  }
  if (now < next_beat_ns_) return;
  next_beat_ns_ = now + interval_ns_;
  for (Link& link : links_) {
    if (!link.must_be_heard() || link.closing) continue;
    // The last one has not arrived: on a network that loses packets, those that follow make the kernel send it again
    // long before its own time, which may be seconds.
    if (has_unacknowledged(link.channel.socket())) next_beat_ns_ = now + interval_ns_ / 4;
    if (link.channel.unsent()) continue;
    const FrameKind kind = link.watched ? FrameKind::kPing : FrameKind::kAlive;
    link.channel.queue({.kind = kind, .rank = self_.rank, .nranks = self_.nranks});
  }
}

// What a rank sent before it died may be behind the news of its death, which came on another connection.
void Switchboard::take_last_words(Link& link) {
  link.channel.pump();
  while (std::optional<Frame> frame = link.channel.next()) {
    if (frame->header.kind == FrameKind::kMessage)
      mail_[{link.rank, frame->header.tag}].push_back(std::move(frame->body));
  }
}

void Switchboard::close_links(std::int64_t now) {
  for (Link& link : links_) {
    if (link.closing && link.role == Role::kDirectIn) take_last_words(link);
  }
  links_.remove_if([&](const Link& link) {
    if (link.role == Role::kUnknown && now - link.heard_ns >= kGreetingLimitNs) return true;
    // What a lost one does not take is not waited for.
    if (link.closing && link.role == Role::kDirectOut && link.channel.unsent()) undelivered_.insert(link.rank);
    return link.closing;
  });
}

// A rank that leaves because of a loss while the ring is being closed waits for its predecessor and tells it why. If it
// just closed its listener, the predecessor would not reach it and would name it instead of the rank that is lost.
bool Switchboard::owes_reason(std::int64_t now) {
  const bool whole = losses_.empty() && !told_;
  if (whole || self_.nranks == 1 || predecessor_came_ || is_lost(predecessor()) || left_.contains(predecessor()))
    return false;
  if (reason_end_ns_ == 0) reason_end_ns_ = now + silence_ns_;
  return now < reason_end_ns_;
}

// Each peer answers a farewell by closing, so that nothing that was sent before it can get lost.
void Switchboard::begin_farewell(std::int64_t now) {
  farewell_end_ns_ = now + kFarewellLimitNs;
  listener_.close();
  links_.remove_if([](const Link& link) { return link.role == Role::kUnknown; });
  for (Link& link : links_) link.channel.queue({.kind = FrameKind::kLeft, .rank = self_.rank, .nranks = self_.nranks});
}

bool Switchboard::farewell_over(std::int64_t now) const {
  return farewell_end_ns_ != 0 && (links_.empty() || now >= farewell_end_ns_);
}

}  // namespace slip
