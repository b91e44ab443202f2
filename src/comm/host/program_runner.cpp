#include "comm/host/program_runner.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.hpp"
#include "comm/reduce/reduce.hpp"
#include "transport/memory/segment.hpp"

namespace slip::comm {

void ProgramRunner::prepare(bool hidden) {
  if (auto* const shared = std::get_if<HostProgramBuilder>(&call_.plan)) {
    call_.host_number = shared->number();
    staging_shift_ = shared->asks() ? 0 : shared->box_shift();  // HostProgramBuilder::write() has added it
    if (shared->asks()) shared->take(peers_.publish(hidden, shared->is_small()));
  }
  refused_ = false;
  began_ = 0;
  piece_ = 0;
  step_ = 0;
  channel_ = 0;
  scratch_ = 0;
  waiter_.reset();
}

void ProgramRunner::start() {
  const auto* const shared = std::get_if<HostProgramBuilder>(&call_.plan);
  if (shared && shared->asks() && context_.memory->can_read()) {
    // Rank 0 measures the call. In a call from a root, a rank that receives does: rank 0, or rank 1 if rank 0 is the
    // root.
    const bool from_root = DirectProgramBuilder::from_root(call_.call.kind);
    if (context_.rank == (from_root && call_.call.root == 0 ? 1 : 0)) began_ = base::ticks();
  }
  context_.links.set_call_channels(call_.channels());
  if (call_.channels() > 1) start_channels();
  else write_program();
}

bool ProgramRunner::run() {
  if (call_.channels() > 1) {
    const bool over = run_channels();
    if (over && context_.memory) context_.host->compare_posted();
    return over;
  }
  for (;;) {
    for (; step_ < program_->steps.size(); ++step_) {
      if (!run_step(program_->steps[step_])) return false;
    }
    if (!end_piece()) return true;
    step_ = 0;
    write_program();
  }
}

// False: it was the last piece of the call.
bool ProgramRunner::end_piece() {
  auto* const shared = std::get_if<HostProgramBuilder>(&call_.plan);
  if (!shared) {
    if (++piece_ < call_.pieces()) return true;
    if (context_.memory) context_.host->compare_posted();
    return false;
  }
  if (shared->path() == HostPath::kOpen) peers_.choose_path(*shared);
  if (piece_ == 1 && shared->path() == HostPath::kRead && context_.host->reads().refused(call_.host_number))
    shared->refuse();
  if (++piece_ < call_.pieces()) return true;
  if (shared->is_direct()) peers_.require_unfailed();
  if (began_ != 0 && (shared->path() == HostPath::kRead || shared->path() == HostPath::kStaged))
    context_.copy_choice.note(call_.call, shared->path() == HostPath::kRead, base::ticks() - began_,
                              context_.host->reads().other_way(call_.call.kind));
  return false;
}

void ProgramRunner::write_program() {
  RunningState& running = context_.running;
  program_ = &running.program;
  const auto* const shared = std::get_if<HostProgramBuilder>(&call_.plan);
  if (!shared) return write_messages();
  if (shared->chunks() > 0 || shared->asks()) {
    running.program.clear();
    if (piece_ >= call_.pieces()) return;
    return shared->write(piece_, running.program);
  }
  const Signature call = call_.signature.without_number();
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  RunningState::SmallProgram& kept = running.small[(call.elements * kOdd ^ call.rest) * kOdd >> 61];
  program_ = &kept.program;
  if (kept.call == call) return;
  kept.program.clear();
  shared->write_small(kept.program);
  kept.call = call;
}

void ProgramRunner::write_messages() {
  RunningState& running = context_.running;
  const MessageProgramBuilder& plan = std::get<MessageProgramBuilder>(call_.plan);
  const std::span<const UserMessage> asked = plan.messages();
  if (asked.empty() || call_.pieces() > 1) {
    running.program.clear();
    if (piece_ >= call_.pieces()) return;
    if (piece_ == 0 && running.scratch.size() < plan.scratch(0)) running.scratch.resize(plan.scratch(0));
    return plan.write(0, piece_, running.program);
  }
  RunningState::MessageProgram& kept = running.messages;
  program_ = &kept.program;
  if (std::equal(asked.begin(), asked.end(), kept.messages.begin(), kept.messages.end())) return;
  kept.program.clear();
  plan.write(0, piece_, kept.program);
  kept.messages.assign(asked.begin(), asked.end());
}

// Inline, as are at() and copy(), because a function call would take longer than their work.
[[gnu::always_inline]] inline bool ProgramRunner::run_step(const Primitive& step) {
  using Kind = WaitCondition::Kind;
  const std::uint64_t number = call_.host_number;
  switch (step.kind) {
    case Primitive::Kind::kCopy: copy(step); return true;
    case Primitive::Kind::kReduce: reduce(step); return true;
    case Primitive::Kind::kRoom:
      return step.value >= number || context_.host->all_have_posted(number - step.value) ||
             waiter_.await(Kind::kRoom, number - step.value);
    case Primitive::Kind::kPost:
      context_.host->post(number, call_.signature, call_.publishes_buffers() ? &peers_.own() : nullptr);
      return true;
    case Primitive::Kind::kMeet: return waiter_.await(Kind::kMeet, number, step.peer);
    case Primitive::Kind::kSignal: context_.host->signal(context_.running.phase + step.value); return true;
    case Primitive::Kind::kEnter: peers_.enter(context_.running.phase + step.value); return true;
    case Primitive::Kind::kWait: return waiter_.await(Kind::kPhase, context_.running.phase + step.value, step.peer);
    case Primitive::Kind::kSend:
    case Primitive::Kind::kReceive: return begin_message(step);
    case Primitive::Kind::kSent:
    case Primitive::Kind::kReceived:
      return waiter_.await_link(Kind::kLink, link_of(context_.links, step, channel_), step, step.value);
  }
  return true;
}

bool ProgramRunner::run_channel_step(const Primitive& step) { return run_step(step); }

[[gnu::always_inline]] inline std::byte* ProgramRunner::at(const BufferLocation& place) const {
  switch (place.space) {
    case BufferSpace::kInput: return const_cast<std::byte*>(call_.input) + place.offset;  // only read
    case BufferSpace::kOutput: return call_.output + place.offset;
    case BufferSpace::kStaging: return context_.host->memory(place.rank) + staging_shift_ + place.offset;
    case BufferSpace::kPeerInput: return context_.running.peers[place.rank].input + place.offset;
    case BufferSpace::kPeerOutput: return context_.running.peers[place.rank].output + place.offset;
    case BufferSpace::kScratch: return context_.running.scratch.data() + scratch_ + place.offset;
    case BufferSpace::kAddress: return reinterpret_cast<std::byte*>(place.offset);
  }
  return nullptr;
}

// The kernel copies. If it refuses, the other ranks learn of it with this rank's next signal.
void ProgramRunner::read(void* to, const BufferLocation& from, std::uint64_t bytes) {
  const std::int32_t process = context_.running.peers[from.rank].input_process;
  if (process == 0) return comm::copy(to, at(from), bytes);
  if (refused_ || transport::read_process(process, reinterpret_cast<std::uintptr_t>(at(from)), to, bytes)) return;
  refused_ = true;
  context_.host->reads().refuse(call_.host_number);
}

[[gnu::always_inline]] inline void ProgramRunner::copy(const Primitive& step) {
  const Call& call = call_.call;
  const BufferLocation& from = program_->locations[step.first + 1];
  void* const to = at(program_->locations[step.first]);
  if (from.space == BufferSpace::kPeerInput) return read(to, from, step.bytes);
  if (call.op != ReduceOp::kPreMulSum || !reduces(call.kind) || from.space != BufferSpace::kInput)
    return comm::copy(to, at(from), step.bytes);
  const void* const source = at(from);  // other ranks expect the input multiplied by this rank's factor
  comm::reduce({call.type, call.op, 1, {&call.scale, 1}}, to, {&source, 1}, step.bytes / bytes_of(call.type));
}

void ProgramRunner::reduce(const Primitive& step) const {
  const Call& call = call_.call;
  RunningState& running = context_.running;
  const BufferLocation* const places = program_->locations.data() + step.first;
  const std::span<const void*> from(running.sources.data(), step.sources);
  const std::span<void*> to(running.targets.data(), step.targets);
  for (std::uint16_t i = 0; i < step.targets; ++i) to[i] = at(places[i]);
  for (std::uint16_t i = 0; i < step.sources; ++i) from[i] = at(places[step.targets + i]);
  const bool divides = call.op == ReduceOp::kAvg && step.whole;
  Reduction how{call.type, call.op, divides ? static_cast<std::uint64_t>(context_.nranks) : 1, {}};
  if (call.op == ReduceOp::kPreMulSum) {
    for (std::uint16_t i = 0; i < step.sources; ++i) {
      const BufferLocation& source = places[step.targets + i];  // values in other spaces are multiplied already
      running.scales[i] = source.space == BufferSpace::kInput       ? call.scale
                          : source.space == BufferSpace::kPeerInput ? running.peers[source.rank].scale
                                                                    : ReduceScale::one(call.type);
    }
    how.scales = {running.scales.data(), step.sources};
  }
  comm::reduce(how, to, from, step.bytes / bytes_of(call.type));
}

bool ProgramRunner::begin_message(const Primitive& step) {
  LinkEnd& link = link_of(context_.links, step, channel_);
  if (link.full() && !waiter_.await_link(WaitCondition::Kind::kLinkRoom, link, step, 0)) return false;
  auto& all = step.kind == Primitive::Kind::kSend ? context_.running.sent : context_.running.received;
  const auto before = static_cast<std::uint64_t>(channel_) * static_cast<std::uint64_t>(context_.nranks);
  RunningState::MessageCount& count = all[before + step.peer];
  std::byte* const place = at(program_->locations[step.first]);
  if (call_.call.kind == Collective::kMessage) {
    const Signature message = Signature::of_message(step.value, count.messages + 1);
    if (step.begins) {
      ++count.messages;
      count.bytes = step.value;
    }
    link.begin(place, step.bytes, step.begins ? &message : nullptr);
  } else {
    const bool first = std::exchange(count.ticket, call_.ticket) != call_.ticket;
    link.begin(place, step.bytes, first ? &call_.signature : nullptr);
  }
  static_cast<void>(context_.links.drive(link, static_cast<int>(step.peer)));
  return true;
}

void ProgramRunner::start_channels() {
  constexpr std::uint64_t kScratchAlignment = 64;
  const MessageProgramBuilder& plan = std::get<MessageProgramBuilder>(call_.plan);
  std::uint64_t scratch = 0;
  for (int i = 0; i < plan.channels(); ++i) {
    ChannelProgress& one = context_.running.channels[static_cast<std::size_t>(i)];
    one.program.clear();
    one.piece = 0;
    one.pieces = plan.pieces(i);
    one.step = 0;
    one.scratch = scratch;
    scratch += (plan.scratch(i) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    if (!one.over()) plan.write(i, 0, one.program);
  }
  if (context_.running.scratch.size() < scratch) context_.running.scratch.resize(scratch);
}

// Returns false if no step of the channel could run.
bool ProgramRunner::run_channel(int channel) {
  ChannelProgress& one = context_.running.channels[static_cast<std::size_t>(channel)];
  channel_ = channel;
  scratch_ = one.scratch;
  program_ = &one.program;
  bool moved = false;
  while (!one.over()) {
    for (; one.step < one.program.steps.size(); ++one.step) {
      if (!can_run(context_.links, one.next(), channel) || !run_channel_step(one.next())) return moved;
      moved = true;
    }
    one.step = 0;
    one.program.clear();
    if (++one.piece < one.pieces) std::get<MessageProgramBuilder>(call_.plan).write(channel, one.piece, one.program);
    moved = true;
  }
  return moved;
}

bool ProgramRunner::run_channels() {
  for (;;) {
    bool moved = false;
    int waiting = -1;
    for (int i = 0; i < call_.channels(); ++i) {
      moved = run_channel(i) || moved;
      if (!context_.running.channels[static_cast<std::size_t>(i)].over()) waiting = i;
    }
    if (waiting < 0) return true;
    if (!moved && !waiter_.await_channels(waiting)) return false;
  }
}

}  // namespace slip::comm
