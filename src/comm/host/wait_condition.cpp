#include "comm/host/wait_condition.hpp"

namespace slip {

void WaitCondition::set_channel(int channel) {
  const Primitive& step = context_.running.channels[static_cast<std::size_t>(channel)].next();
  set_link(link_of(context_.links, step, channel),
           step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent);
  peer_ = step.peer;
}

bool WaitCondition::any_channel_can_run() const {
  for (int i = 0; i < call_.channels(); ++i) {
    const ChannelProgress& one = context_.running.channels[static_cast<std::size_t>(i)];
    if (!one.over() && can_run(context_.links, one.next(), i)) return true;
  }
  return false;
}

bool WaitCondition::is_missing(int rank) const {
  if (rank == context_.rank) return false;
  if (kind_ == Kind::kTicket) return false;
  if (peer_ != kAllPeers && peer_ != static_cast<std::uint64_t>(rank)) return false;
  if (on_link()) return true;
  const std::uint64_t last = context_.host->last_posted(rank);
  if (kind_ == Kind::kRoom) return last < value_;
  return last < call_.slot || (last == call_.slot && kind_ == Kind::kPhase);
}

}  // namespace slip
