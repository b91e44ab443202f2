// WaitCondition: the condition that a running call waits for. CallWaiter polls it; FailureCheck asks it which ranks are
// missing. Polling never blocks.
#pragma once

#include <cstdint>

#include "base/sync.hpp"
#include "comm/host/call_context.hpp"

namespace slip::comm {

class WaitCondition {
 public:
  enum class Kind {
    kNothing,
    kTicket,    // the next ticket is `value`: all earlier calls of this rank have ended
    kRoom,      // all ranks have posted call `value`
    kMeet,      // `peer` (one rank or all) has posted call `value`, with the same signature
    kPhase,     // `peer` has reached phase `value`
    kLinkRoom,  // the link takes another message
    kLink,      // at most `value` messages of the link are under way
    kChannels,  // a channel of the call can run its next step
  };

  WaitCondition(CallContext& context, const ActiveCall& call) : context_(context), call_(call) {}

  // Returns false if this is already the current condition: then the wait continues, with its deadline.
  bool set(Kind kind, std::uint64_t value, std::uint64_t peer) {
    if (kind_ == kind && value_ == value && peer_ == peer) return false;
    kind_ = kind;
    value_ = value;
    peer_ = peer;
    next_rank_ = 0;
    return true;
  }
  void clear() { kind_ = Kind::kNothing; }
  // Call it before set() with Kind::kLinkRoom or kLink.
  void set_link(LinkEnd& link, bool sends) {
    link_ = &link;
    link_sends_ = sends;
  }
  // Kind::kChannels: rank(), link() and peer() then report the rank and the link that this channel waits for.
  void set_channel(int channel);

  // Polls the condition. It begins with the first rank that did not satisfy it before. Throws CallMismatch, and the
  // error of a link.
  bool holds();

  Kind kind() const { return kind_; }
  bool on_link() const { return kind_ == Kind::kLink || kind_ == Kind::kLinkRoom || kind_ == Kind::kChannels; }
  bool link_sends() const { return link_sends_; }
  const LinkEnd& link() const { return *link_; }
  std::uint64_t peer() const { return peer_; }
  // The awaited rank, or the first of several.
  int rank() const { return on_link() ? static_cast<int>(peer_) : next_rank_; }
  // Whether the rank has not joined this call, or not progressed as far as the condition needs.
  bool is_missing(int rank) const;

 private:
  bool others_are_there();
  bool any_channel_can_run() const;

  CallContext& context_;
  const ActiveCall& call_;
  Kind kind_ = Kind::kNothing;
  std::uint64_t value_ = 0;
  std::uint64_t peer_ = 0;
  int next_rank_ = 0;  // the first rank that does not yet satisfy the condition
  LinkEnd* link_ = nullptr;
  bool link_sends_ = false;
};

// Inline, because in a small call a function call would take longer than the work of these functions.
inline bool WaitCondition::others_are_there() {
  SharedHost& host = *context_.host;
  for (; next_rank_ < context_.nranks; ++next_rank_) {
    if (next_rank_ == context_.rank || (peer_ != kAllPeers && peer_ != static_cast<std::uint64_t>(next_rank_)))
      continue;
    if (kind_ == Kind::kPhase) {
      if (!host.has_reached(next_rank_, value_)) return false;
    } else {
      if (!host.has_posted(next_rank_, value_)) return false;
      host.compare(next_rank_, value_);
    }
  }
  return true;
}

inline bool WaitCondition::holds() {
  switch (kind_) {
    case Kind::kNothing: return true;
    case Kind::kTicket: return base::load_acquire(context_.next_ticket) == value_;  // acquire: see CallRun::end()
    case Kind::kRoom: return context_.host->all_have_posted(value_);
    case Kind::kLinkRoom: static_cast<void>(context_.links.drive()); return !link_->full();
    case Kind::kLink:
      if (link_->begun() - link_->done() <= value_) return true;
      static_cast<void>(context_.links.drive());
      return link_->begun() - link_->done() <= value_;
    case Kind::kChannels: static_cast<void>(context_.links.drive()); return any_channel_can_run();
    case Kind::kMeet:
    case Kind::kPhase: break;
  }
  return others_are_there();
}

inline void WaitCondition::set_channel(int channel) {
  const Primitive& step = context_.running.channels[static_cast<std::size_t>(channel)].next();
  set_link(link_of(context_.links, step, channel),
           step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent);
  peer_ = step.peer;
}

inline bool WaitCondition::any_channel_can_run() const {
  for (int i = 0; i < call_.channels(); ++i) {
    const ChannelProgress& one = context_.running.channels[static_cast<std::size_t>(i)];
    if (!one.over() && can_run(context_.links, one.next(), i)) return true;
  }
  return false;
}

inline bool WaitCondition::is_missing(int rank) const {
  if (rank == context_.rank) return false;
  if (kind_ == Kind::kTicket) return false;
  if (peer_ != kAllPeers && peer_ != static_cast<std::uint64_t>(rank)) return false;
  if (on_link()) return true;
  const std::uint64_t last = context_.host->last_posted(rank);
  if (kind_ == Kind::kRoom) return last < value_;
  return last < call_.host_number || (last == call_.host_number && kind_ == Kind::kPhase);
}

}  // namespace slip::comm
