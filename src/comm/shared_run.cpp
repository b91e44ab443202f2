#include "comm/shared_run.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "comm/copy.hpp"
#include "runtime/observers.hpp"

namespace slip {
namespace {

// While every rank has a core, an answer comes sooner than a switch of threads would take.
constexpr int kSpins = 2000, kSpinsCrowded = 50;
constexpr int kTight = 200;       // of them without a pause, which would be longer than what is left to wait
constexpr double kYieldUs = 500;  // then the thread may have better things to do

}  // namespace

std::uint64_t SharedRun::prepare(const Call& call, std::uint64_t number, std::uint64_t chunks_before, std::byte* output,
                                 const std::byte* input, bool hidden) {
  call_ = call;
  number_ = number;
  output_ = output;
  input_ = input;
  signature_ = Signature::of(call, number);
  if (HostPlan::asks(call, calls_.host.nranks())) offer_ = make_offer(hidden);
  plan_.emplace(call, number, chunks_before, calls_.host.rank(), calls_.host.nranks(), offer_.stance);
  piece_ = 0;
  step_ = 0;
  begun_ = false;
  waits_for_ = Wait::kNothing;
  deadline_ns_ = 0;
  error_ = nullptr;
  return plan_->chunks();
}

bool SharedRun::advance() noexcept {
  try {
    if (!go_on()) return false;
  } catch (const Error& error) {
    calls_.host.fail(error.code(), error.what());
    error_ = std::current_exception();
  } catch (const std::exception& error) {
    calls_.host.fail(Code::kLaunchFailed,
                     fmt::format("rank {} in {}: {}", calls_.host.rank(), signature_.text(), error.what()));
    error_ = std::current_exception();
  }
  if (error_) retreat();
  end();
  return true;
}

bool SharedRun::go_on() {
  if (!begun_) {
    if (!await(Wait::kTurn, number_)) return false;
    if (calls_.host.failed()) throw calls_.host.why();  // phases may be out of step
    began_ns_ = observed() ? now_ns() : 0;
    begun_ = true;
    calls_.program.clear();
    plan_->write(0, calls_.program);
  }
  for (;;) {
    for (; step_ < calls_.program.steps.size(); ++step_) {
      if (!run(calls_.program.steps[step_])) return false;
    }
    if (plan_->path() == Path::kOpen) choose_path();
    if (++piece_ >= plan_->pieces()) {
      if (plan_->path() == Path::kDirect) require_sound();
      return true;
    }
    step_ = 0;
    calls_.program.clear();
    plan_->write(piece_, calls_.program);
  }
}

// What comes after it in the communicator may run. A call that failed leaves no phase that others could count on, but
// nobody will: the failure is everybody's.
void SharedRun::end() {
  if (begun_) calls_.phase += plan_->phases();
  calls_.turn.store(number_ + 1, std::memory_order_release);  // the next one sees `phase` and the memory as left here
}

void SharedRun::finish(bool skipped) {
  const std::exception_ptr error = error_;
  if (skipped) {
    calls_.host.fail(Code::kAborted, fmt::format("rank {} left out {}, for its stream had failed before",
                                                 calls_.host.rank(), signature_.text()));
    if (!begun_) calls_.turn.store(number_ + 1, std::memory_order_release);  // it fails, too, and does not hang
  }
  error_ = nullptr;
  free.store(true, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

bool SharedRun::run(const Primitive& step) {
  switch (step.kind) {
    case Primitive::Kind::kCopy: copy(step); return true;
    case Primitive::Kind::kReduce: reduce(step); return true;
    case Primitive::Kind::kRoom: return await(Wait::kRoom, number_);
    case Primitive::Kind::kPost: calls_.host.post(number_, signature_, plan_->asks() ? &offer_ : nullptr); return true;
    case Primitive::Kind::kMeet: return await(Wait::kMeet, step.value);
    case Primitive::Kind::kSignal: calls_.host.signal(calls_.phase + step.value); return true;
    case Primitive::Kind::kEnter: enter(calls_.phase + step.value); return true;
    case Primitive::Kind::kWait: return await(Wait::kPhase, calls_.phase + step.value);
  }
  return true;
}

std::byte* SharedRun::at(const Place& place) const {
  switch (place.space) {
    case Space::kInput: return const_cast<std::byte*>(input_) + place.offset;  // only read
    case Space::kOutput: return output_ + place.offset;
    case Space::kStaging: return calls_.host.memory(place.rank) + place.offset;
    case Space::kPeerInput: return calls_.peers[place.rank].input + place.offset;
    case Space::kPeerOutput: return calls_.peers[place.rank].output + place.offset;
  }
  return nullptr;
}

void SharedRun::copy(const Primitive& step) const {
  const Place& from = calls_.program.places[step.first + 1];
  void* const to = at(calls_.program.places[step.first]);
  if (to == at(from)) return;
  if (call_.op != ReduceOp::kPreMulSum || !reduces(call_.kind) || from.space != Space::kInput)
    return slip::copy(to, at(from), step.bytes);
  const void* const source = at(from);  // others are to find it multiplied
  slip::reduce({call_.type, call_.op, 1, {&call_.scale, 1}}, to, {&source, 1}, step.bytes / bytes_of(call_.type));
}

void SharedRun::reduce(const Primitive& step) const {
  const Place* const places = calls_.program.places.data() + step.first;
  const std::span<const void*> from(calls_.sources.data(), step.sources);
  const std::span<void*> to(calls_.targets.data(), step.targets);
  for (std::uint16_t i = 0; i < step.targets; ++i) to[i] = at(places[i]);
  for (std::uint16_t i = 0; i < step.sources; ++i) from[i] = at(places[step.targets + i]);
  const bool divides = call_.op == ReduceOp::kAvg && step.whole;
  Reduction how{call_.type, call_.op, divides ? static_cast<std::uint64_t>(calls_.host.nranks()) : 1, {}};
  if (call_.op == ReduceOp::kPreMulSum) {
    for (std::uint16_t i = 0; i < step.sources; ++i) {
      const Place& source = places[step.targets + i];  // in staging it is multiplied already
      calls_.scales[i] = source.space == Space::kInput       ? call_.scale
                         : source.space == Space::kPeerInput ? calls_.peers[source.rank].scale
                                                             : ReduceScale::one(call_.type);
    }
    how.scales = {calls_.scales.data(), step.sources};
  }
  slip::reduce(how, to, from, step.bytes / bytes_of(call_.type));
}

// Whether what it waits for has come. Goes on where the last look ended.
bool SharedRun::is_there() {
  SharedHost& host = calls_.host;
  switch (waits_for_) {
    case Wait::kNothing: return true;
    case Wait::kTurn: return calls_.turn.load(std::memory_order_acquire) == value_;  // acquire: see end()
    case Wait::kRoom: return host.has_room(value_);
    case Wait::kMeet:
    case Wait::kPhase: break;
  }
  for (; next_rank_ < host.nranks(); ++next_rank_) {
    if (next_rank_ == host.rank()) continue;
    if (waits_for_ == Wait::kPhase) {
      if (!host.has_reached(next_rank_, value_)) return false;
    } else if (value_ == kEverybody || value_ == static_cast<std::uint64_t>(next_rank_)) {
      if (!host.has_posted(next_rank_, number_)) return false;
      require_same(next_rank_);
    }
  }
  return true;
}

// A rank that asks for something else: both sides are told what each asked for.
void SharedRun::require_same(int rank) const {
  const Signature& other = calls_.host.posted(rank, number_);
  if (other == signature_) return;
  throw Error(Code::kMismatch,
              fmt::format("rank {} calls {}, rank {} calls {}: all ranks of a communicator must make the same calls in "
                          "the same order",
                          calls_.host.rank(), signature_.text(), rank, other.text()),
              {});
}

bool SharedRun::await(Wait what, std::uint64_t value) {
  if (waits_for_ != what || value_ != value) {
    waits_for_ = what;
    value_ = value;
    next_rank_ = 0;
    deadline_ns_ = 0;
  }
  for (int turn = 0; turn < (calls_.host.crowded() ? kSpinsCrowded : kSpins); ++turn) {
    if (is_there()) {
      waits_for_ = Wait::kNothing;
      return true;
    }
    if (turn >= kTight) cpu_relax();
  }
  look_for_trouble();
  const std::uint64_t begun = ticks();
  const auto limit = static_cast<std::uint64_t>(kYieldUs * ticks_per_us());
  while (ticks() - begun < limit) {
    if (is_there()) {
      waits_for_ = Wait::kNothing;
      return true;
    }
    yield_thread();
  }
  return false;
}

bool SharedRun::can_advance() noexcept {
  try {
    look_for_trouble();
    return is_there();
  } catch (...) {
    return true;  // advance() meets it again, and can tell
  }
}

void SharedRun::look_for_trouble() {
  if (calls_.aborted.load(std::memory_order_relaxed))  // relaxed: nothing else is passed with it
    throw Error(Code::kAborted, fmt::format("rank {}: aborted in {}", calls_.host.rank(), signature_.text()), {});
  if (calls_.host.failed()) throw calls_.host.why();
  if (calls_.bootstrap.broken()) {
    const std::optional<Loss> loss = calls_.bootstrap.lost();
    throw Error(Code::kRankLost,
                fmt::format("rank {} is gone; rank {} was in {}", loss ? loss->rank : -1, calls_.host.rank(),
                            signature_.text()),
                {});
  }
  if (deadline_ns_ == 0) deadline_ns_ = now_ns() + calls_.timeout_ns;
  else if (now_ns() > deadline_ns_) time_out();
}

void SharedRun::time_out() const {
  std::string missing;
  for (int rank = 0; rank < calls_.host.nranks(); ++rank) {
    const std::uint64_t last = calls_.host.last_posted(rank);
    if (rank == calls_.host.rank() || last > number_ || (last == number_ && waits_for_ != Wait::kPhase)) continue;
    missing += fmt::format("{}rank {} ({})", missing.empty() ? "" : ", ", rank,
                           last == 0 ? "no call yet" : "last in " + calls_.host.posted(rank, last).text());
  }
  throw Error(Code::kTimeout,
              fmt::format("rank {} waited {:.1f} s in {} for {}", calls_.host.rank(),
                          static_cast<double>(calls_.timeout_ns) / 1e9, signature_.text(),
                          missing.empty() ? "its own earlier call" : missing),
              {});
}

}  // namespace slip
