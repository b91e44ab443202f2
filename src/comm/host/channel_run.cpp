// SharedRun, where a call has several channels: each is a program of its own and goes on as far as it can; when all of
// them wait for something, so does the call.
#include "comm/host/shared_run.hpp"

namespace slip {

int SharedRun::channels() const {
  const auto* const messages = std::get_if<MessageProgramBuilder>(&plan_);
  return messages ? messages->channels() : 1;
}

void SharedRun::begin_channels() {
  const MessageProgramBuilder& plan = std::get<MessageProgramBuilder>(plan_);
  std::uint64_t scratch = 0;
  for (int i = 0; i < plan.channels(); ++i) {
    SharedCalls::Channel& one = calls_.channels[static_cast<std::size_t>(i)];
    one.program.clear();
    one.piece = 0;
    one.pieces = plan.pieces(i);
    one.step = 0;
    one.scratch = scratch;
    scratch += (plan.scratch(i) + 63) / 64 * 64;
    if (!one.over()) plan.write(i, 0, one.program);
  }
  if (calls_.scratch.size() < scratch) calls_.scratch.resize(scratch);
}

bool SharedRun::can_run(const Primitive& step, int channel) const {
  switch (step.kind) {
    case Primitive::Kind::kSend:
    case Primitive::Kind::kReceive: return !link_of(step, channel).full();
    case Primitive::Kind::kSent:
    case Primitive::Kind::kReceived: {
      const LinkEnd& link = link_of(step, channel);
      return link.begun() - link.done() <= step.value;
    }
    default: return true;
  }
}

// False: it could not even begin.
bool SharedRun::run_channel(int channel) {
  SharedCalls::Channel& one = calls_.channels[static_cast<std::size_t>(channel)];
  channel_ = channel;
  scratch_ = one.scratch;
  program_ = &one.program;
  bool moved = false;
  while (!one.over()) {
    for (; one.step < one.program.steps.size(); ++one.step) {
      if (!can_run(one.next(), channel) || !run_of_channel(one.next())) return moved;
      moved = true;
    }
    one.step = 0;
    one.program.clear();
    if (++one.piece < one.pieces) std::get<MessageProgramBuilder>(plan_).write(channel, one.piece, one.program);
    moved = true;
  }
  return moved;
}

bool SharedRun::run_channels() {
  for (;;) {
    bool moved = false;
    int waiting = -1;
    for (int i = 0; i < channels(); ++i) {
      moved = run_channel(i) || moved;
      if (!calls_.channels[static_cast<std::size_t>(i)].over()) waiting = i;
    }
    if (waiting < 0) return true;
    if (moved) continue;
    const bool goes_on = waits_for_ == Wait::kChannels;  // its deadline does
    if (!goes_on) look_at(waiting);
    if (!await(Wait::kChannels, 0, goes_on ? whom_ : calls_.channels[static_cast<std::size_t>(waiting)].next().peer))
      return false;
  }
}

bool SharedRun::any_channel_can_run() const {
  for (int i = 0; i < channels(); ++i) {
    const SharedCalls::Channel& one = calls_.channels[static_cast<std::size_t>(i)];
    if (!one.over() && can_run(one.next(), i)) return true;
  }
  return false;
}

// What a channel waits for is what is told of the call.
void SharedRun::look_at(int channel) {
  const Primitive& step = calls_.channels[static_cast<std::size_t>(channel)].next();
  link_ = &link_of(step, channel);
  link_sends_ = step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent;
  whom_ = step.peer;
}

}  // namespace slip
