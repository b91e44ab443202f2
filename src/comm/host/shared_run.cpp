#include "comm/host/shared_run.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "comm/host/copy.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"

namespace slip {
namespace {

// While every rank has a core, an answer comes sooner than a switch of threads would take.
constexpr int kSpins = 2000, kSpinsCrowded = 4;
// Of a network each look is a system call a link. Giving way is enough while the others are about to send: they have
// the core at once, and nobody need be woken. Who has given way in vain sleeps, for kernels may want the core.
constexpr int kSpinsNet = 100, kSpinsCrowdedNet = 1;
// Where answers take longer than this, looking and giving way takes the core from kernels for nothing: so many of the
// next waits park at once. What parking itself takes is less, so it is no reason to go on with it. Not where ranks
// share cores: giving way lets them come.
constexpr double kSlowUs = 1000;
constexpr int kSlowWaits = 8;
constexpr int kTight = 200;  // of them without a pause, which would be longer than what is left to wait
constexpr std::uint64_t kBeginsBytes = 32 << 10;  // some microseconds: enqueuing should not take longer
// Of the thread that enqueues, while every rank has a core: who comes at the same time is met here, without another
// thread, or another look at the stream; who is late is not waited for, some 0.4 us are lost.
constexpr int kBeginLooks = 128;
// Then a worker may have better things to do. Who waits for this call has not, but a network would wake it; and where
// ranks share cores the one waited for has to get its turns first.
constexpr double kYieldUs = 500, kYieldWaiterUs = 5000, kYieldCrowdedUs = 20'000;

}  // namespace

void SharedCalls::throw_failure() const {
  if (host && host->failed()) throw host->why();
  if (!bootstrap.broken()) return;
  if (const std::optional<RankFailure> told = bootstrap.failure()) throw Error(told->code, told->text, {});
}

void SharedRun::prepare(const Call& call, std::uint64_t turn, std::uint64_t number, const CallBuffers& buffers) {
  call_ = call;
  turn_ = turn;
  output_ = buffers.output;
  input_ = buffers.input;
  signature_ = Signature::of(call, number);
  if (auto* const shared = std::get_if<HostProgramBuilder>(&plan_)) {
    slot_ = shared->number();
    shift_ = shared->box_shift();
    if (shared->asks()) shared->take((offer_ = make_offer(buffers.hidden)).stance);
  }
  piece_ = 0;
  step_ = 0;
  begun_ = ended_ = false;
  waits_for_ = Wait::kNothing;
  deadline_ns_ = 0;
  waits_since_ = 0;
  channel_ = 0;
  scratch_ = 0;
  error_ = nullptr;
}

// What a small call gives is there, and posted, before the host is back from enqueuing it.
bool SharedRun::begin() noexcept {
  if (call_.block_bytes() > kBeginsBytes) return false;
  patient_ = false;
  ended_ = advance(By::kWorker);
  patient_ = true;
  return ended_;
}

bool SharedRun::advance(By thread) noexcept {
  if (ended_) return true;
  by_ = thread;
  if (told_) tell_nobody();
  try {
    if (!go_on()) {
      // Who has just enqueued it will wait for it, or a worker looks after it: the proxy is for what takes long. Before
      // its turn the links are another call's.
      if (patient_ && begun_) calls_.links.attend(false);
      return false;
    }
  } catch (const Error& met) {
    const Error error = with_cause(met);
    fail(error.code(), error.what() + std::strlen(code_name(error.code())) + 2);  // the code is put before it again
    error_ = std::make_exception_ptr(error);
  } catch (const std::exception& error) {
    fail(Code::kLaunchFailed, fmt::format("rank {} in {}: {}", calls_.rank, signature_.text(), error.what()));
    error_ = std::current_exception();
  }
  if (error_) retreat();
  end();
  return true;
}

bool SharedRun::go_on() {
  if (!begun_) {
    if (!await(Wait::kTurn, turn_)) return false;
    calls_.throw_failure();  // phases may be out of step, and links closed
    if (calls_.bootstrap.broken()) throw_loss();
    began_ns_ = observed() ? now_ns() : 0;
    begun_ = true;
    calls_.seat.begin(turn_, signature_.elements, signature_.rest);
    if (channels() > 1) begin_channels();
    else write_program();
  }
  if (channels() > 1) {
    const bool over = run_channels();
    if (over && calls_.memory) calls_.host->compare_posted();
    return over;
  }
  for (;;) {
    for (; step_ < program_->steps.size(); ++step_) {
      if (!run(program_->steps[step_])) return false;
    }
    auto* const shared = std::get_if<HostProgramBuilder>(&plan_);
    if (shared && shared->path() == HostPath::kOpen) choose_path(*shared);
    if (++piece_ >= pieces()) {
      if (shared && shared->path() == HostPath::kDirect) require_sound();
      if (!shared && calls_.memory) calls_.host->compare_posted();
      return true;
    }
    step_ = 0;
    write_program();
  }
}

std::uint64_t SharedRun::pieces() const {
  if (const auto* shared = std::get_if<HostProgramBuilder>(&plan_)) return shared->pieces();
  if (const auto* messages = std::get_if<MessageProgramBuilder>(&plan_)) return messages->pieces(0);
  return 0;
}

bool SharedRun::asks() const {
  const auto* const shared = std::get_if<HostProgramBuilder>(&plan_);
  return shared && shared->asks();
}

void SharedRun::write_program() {
  program_ = &calls_.program;
  const auto* const shared = std::get_if<HostProgramBuilder>(&plan_);
  if (!shared) return write_messages();
  if (shared->chunks() > 0) {
    calls_.program.clear();
    if (piece_ < pieces()) shared->write(piece_, calls_.program);
    return;
  }
  const Signature call = signature_.without_number();
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  SharedCalls::Written& kept = calls_.small[(call.elements * kOdd ^ call.rest) * kOdd >> 61];
  program_ = &kept.program;
  if (kept.call == call) return;
  kept.program.clear();
  shared->write_small(kept.program);
  kept.call = call;
}

void SharedRun::write_messages() {
  const MessageProgramBuilder& plan = std::get<MessageProgramBuilder>(plan_);
  const std::span<const UserMessage> asked = plan.messages();
  if (asked.empty() || pieces() > 1) {
    calls_.program.clear();
    if (piece_ >= pieces()) return;
    if (piece_ == 0 && calls_.scratch.size() < plan.scratch(0)) calls_.scratch.resize(plan.scratch(0));
    return plan.write(0, piece_, calls_.program);
  }
  SharedCalls::WrittenParcels& kept = calls_.messages;
  program_ = &kept.program;
  if (std::equal(asked.begin(), asked.end(), kept.parcels.begin(), kept.parcels.end())) return;
  kept.program.clear();
  plan.write(0, piece_, kept.program);
  kept.parcels.assign(asked.begin(), asked.end());
}

// What comes after it in the communicator may run. A call that failed leaves no phase that others could count on, but
// nobody will: the failure is everybody's.
void SharedRun::end() {
  if (const auto* shared = std::get_if<HostProgramBuilder>(&plan_); shared && begun_) calls_.phase += shared->phases();
  if (noted_) calls_.seat.wait_over();  // it failed in a wait
  noted_ = false;
  calls_.seat.end(turn_);
  calls_.turn.store(turn_ + 1, std::memory_order_release);  // the next one sees `phase` and the memory as left here
}

void SharedRun::finish(const Failure* cause) {
  if (told_) tell_nobody();
  if (cause) {
    // A loss that one communicator met is the loss of those behind it in the stream, too.
    fail(cause->code == Code::kRankLost ? Code::kRankLost : Code::kAborted,
         fmt::format("rank {} left out {}, for its stream had failed before: {}", calls_.rank, signature_.text(),
                     cause->text));
    error_ = nullptr;  // the stream has its own
    if (!begun_) {
      calls_.turn.store(turn_ + 1, std::memory_order_release);  // it fails, too, and does not hang
    } else if (!ended_) {                                       // begin() did a part of it
      retreat();
      end();
    }
  }
  if (!error_) [[likely]] {
    free.store(true, std::memory_order_release);
    return;
  }
  const std::exception_ptr error = std::exchange(error_, nullptr);
  free.store(true, std::memory_order_release);
  std::rethrow_exception(error);
}

// Inline, as are the next two: what they do takes less time than calling them.
[[gnu::always_inline]] inline bool SharedRun::run(const Primitive& step) {
  switch (step.kind) {
    case Primitive::Kind::kCopy: copy(step); return true;
    case Primitive::Kind::kReduce: reduce(step); return true;
    case Primitive::Kind::kRoom: return step.value >= slot_ || await(Wait::kRoom, slot_ - step.value);
    case Primitive::Kind::kPost: calls_.host->post(slot_, signature_, asks() ? &offer_ : nullptr); return true;
    case Primitive::Kind::kMeet: return await(Wait::kMeet, slot_, step.peer);
    case Primitive::Kind::kSignal: calls_.host->signal(calls_.phase + step.value); return true;
    case Primitive::Kind::kEnter: enter(calls_.phase + step.value); return true;
    case Primitive::Kind::kWait: return await(Wait::kPhase, calls_.phase + step.value, step.peer);
    case Primitive::Kind::kSend:
    case Primitive::Kind::kReceive: return begin_message(step);
    case Primitive::Kind::kSent:
    case Primitive::Kind::kReceived: return await_link(Wait::kLink, step, step.value);
  }
  return true;
}

bool SharedRun::run_of_channel(const Primitive& step) { return run(step); }

[[gnu::always_inline]] inline std::byte* SharedRun::at(const BufferLocation& place) const {
  switch (place.space) {
    case BufferSpace::kInput: return const_cast<std::byte*>(input_) + place.offset;  // only read
    case BufferSpace::kOutput: return output_ + place.offset;
    case BufferSpace::kStaging: return calls_.host->memory(place.rank) + shift_ + place.offset;
    case BufferSpace::kPeerInput: return calls_.peers[place.rank].input + place.offset;
    case BufferSpace::kPeerOutput: return calls_.peers[place.rank].output + place.offset;
    case BufferSpace::kScratch: return calls_.scratch.data() + scratch_ + place.offset;
    case BufferSpace::kAddress: return reinterpret_cast<std::byte*>(place.offset);
  }
  return nullptr;
}

[[gnu::always_inline]] inline void SharedRun::copy(const Primitive& step) const {
  const BufferLocation& from = program_->locations[step.first + 1];
  void* const to = at(program_->locations[step.first]);
  if (call_.op != ReduceOp::kPreMulSum || !reduces(call_.kind) || from.space != BufferSpace::kInput)
    return slip::copy(to, at(from), step.bytes);
  const void* const source = at(from);  // others are to find it multiplied
  slip::reduce({call_.type, call_.op, 1, {&call_.scale, 1}}, to, {&source, 1}, step.bytes / bytes_of(call_.type));
}

void SharedRun::reduce(const Primitive& step) const {
  const BufferLocation* const locations = program_->locations.data() + step.first;
  const std::span<const void*> from(calls_.sources.data(), step.sources);
  const std::span<void*> to(calls_.targets.data(), step.targets);
  for (std::uint16_t i = 0; i < step.targets; ++i) to[i] = at(locations[i]);
  for (std::uint16_t i = 0; i < step.sources; ++i) from[i] = at(locations[step.targets + i]);
  const bool divides = call_.op == ReduceOp::kAvg && step.whole;
  Reduction how{call_.type, call_.op, divides ? static_cast<std::uint64_t>(calls_.nranks) : 1, {}};
  if (call_.op == ReduceOp::kPreMulSum) {
    for (std::uint16_t i = 0; i < step.sources; ++i) {
      const BufferLocation& source = locations[step.targets + i];  // elsewhere it is multiplied already
      calls_.scales[i] = source.space == BufferSpace::kInput       ? call_.scale
                         : source.space == BufferSpace::kPeerInput ? calls_.peers[source.rank].scale
                                                                   : ReduceScale::one(call_.type);
    }
    how.scales = {calls_.scales.data(), step.sources};
  }
  slip::reduce(how, to, from, step.bytes / bytes_of(call_.type));
}

LinkEnd& SharedRun::link_of(const Primitive& step, int channel) const {
  const bool out = step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent;
  const auto rank = static_cast<int>(step.peer);
  return out ? calls_.links.to(rank, channel) : calls_.links.from(rank, channel);
}

bool SharedRun::await_link(Wait what, const Primitive& step, std::uint64_t value) {
  link_ = &link_of(step, channel_);
  link_sends_ = step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent;
  return await(what, value, step.peer);
}

bool SharedRun::begin_message(const Primitive& step) {
  LinkEnd& link = link_of(step, channel_);
  if (link.full() && !await_link(Wait::kLinkRoom, step, 0)) return false;
  std::vector<SharedCalls::Said>& all = step.kind == Primitive::Kind::kSend ? calls_.said_to : calls_.said_from;
  const auto before = static_cast<std::uint64_t>(channel_) * static_cast<std::uint64_t>(calls_.nranks);
  SharedCalls::Said& said = all[before + step.peer];
  std::byte* const place = at(program_->locations[step.first]);
  if (call_.kind == Collective::kMessage) {
    const Signature message = Signature::of_message(step.value, said.messages);
    if (step.begins) {
      ++said.messages;
      said.bytes = step.value;
    }
    link.begin(place, step.bytes, step.begins ? &message : nullptr);
  } else {
    const bool first = std::exchange(said.turn, turn_) != turn_;
    link.begin(place, step.bytes, first ? &signature_ : nullptr);
  }
  static_cast<void>(calls_.links.drive(link, static_cast<int>(step.peer)));
  return true;
}

// Whether what it waits for has come. Goes on where the last look ended.
bool SharedRun::is_there() {
  SharedHost* const host = calls_.host;
  switch (waits_for_) {
    case Wait::kNothing: return true;
    case Wait::kTurn: return load_acquire(calls_.turn) == value_;  // acquire: see end()
    case Wait::kRoom: return host->all_have_posted(value_);
    case Wait::kLinkRoom: static_cast<void>(calls_.links.drive()); return !link_->full();
    case Wait::kLink:
      if (link_->begun() - link_->done() <= value_) return true;
      static_cast<void>(calls_.links.drive());
      return link_->begun() - link_->done() <= value_;
    case Wait::kChannels: static_cast<void>(calls_.links.drive()); return any_channel_can_run();
    case Wait::kMeet:
    case Wait::kPhase: break;
  }
  for (; next_rank_ < calls_.nranks; ++next_rank_) {
    if (next_rank_ == calls_.rank || (whom_ != kAllPeers && whom_ != static_cast<std::uint64_t>(next_rank_))) continue;
    if (waits_for_ == Wait::kPhase) {
      if (!host->has_reached(next_rank_, value_)) return false;
    } else {
      if (!host->has_posted(next_rank_, slot_)) return false;
      host->compare(next_rank_, slot_);
    }
  }
  return true;
}

bool SharedRun::await(Wait what, std::uint64_t value, std::uint64_t peer) {
  if (waits_for_ != what || value_ != value || whom_ != peer) {
    waits_for_ = what;
    value_ = value;
    whom_ = peer;
    next_rank_ = 0;
    deadline_ns_ = 0;
  }
  const bool by_net = on_link() && !calls_.links.through_memory(static_cast<int>(peer));
  const bool cheap = (what == Wait::kMeet && peer == kAllPeers) || (what == Wait::kLink && !by_net);
  const int crowded = by_net ? kSpinsCrowdedNet : kSpinsCrowded;
  const bool slow = by_net && !calls_.crowded && calls_.slow_waits > 0;
  const int spins = calls_.in_turns || slow ? 1
                    : patient_              ? (calls_.crowded ? crowded
                                               : by_net       ? kSpinsNet
                                                              : kSpins)
                                            : (cheap && !calls_.crowded ? kBeginLooks : 1);
  for (int turn = 0; turn < spins; ++turn) {
    if (is_there()) return come();
    if (turn >= kTight) cpu_relax();
  }
  if (!patient_) return false;
  look_for_trouble();
  const std::uint64_t begun = ticks();
  if (by_net && waits_since_ == 0) waits_since_ = begun;
  const double patience_us = calls_.in_turns || slow ? 0
                             : by_ == By::kWorker    ? kYieldUs
                             : calls_.crowded        ? kYieldCrowdedUs
                             : by_net                ? kYieldUs
                                                     : kYieldWaiterUs;
  const auto limit = static_cast<std::uint64_t>(patience_us * ticks_per_us());
  if (yield_until_there(begun, limit, by_net)) return come();
  note_wait();
  return false;
}

void SharedRun::note_pace() {
  const double us = static_cast<double>(ticks() - std::exchange(waits_since_, 0)) / ticks_per_us();
  calls_.slow_waits = us > kSlowUs ? kSlowWaits : std::max(0, calls_.slow_waits - kSlowWaits / 2);
}

bool SharedRun::come() {
  waits_for_ = Wait::kNothing;
  if (waits_since_ != 0) note_pace();
  if (noted_) calls_.seat.wait_over();
  noted_ = false;
  return true;
}

}  // namespace slip
