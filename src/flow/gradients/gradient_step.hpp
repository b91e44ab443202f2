// One step of gradients, and how its buckets are reduced.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "flow/gradients/gradient_set.hpp"
#include "flow/gradients/gradient_times.hpp"

namespace slip::flow {

// How a bucket is reduced: by all_reduce, by all_reduce of compressed values, or by the user's hook.
class GradientReduction {
 public:
  GradientReduction(Compression compression, GradientHook hook) : compression_(compression), hook_(std::move(hook)) {}

  bool needs_scratch() const { return hook_ || compression_ != Compression::kNone; }
  bool is_hook() const { return static_cast<bool>(hook_); }
  // Enqueues the reduction. Throws what the hook throws.
  void enqueue(const GradientCall& call, Here here) const;

 private:
  Compression compression_;
  GradientHook hook_;
};

// Measures calls on zeros, from small sizes up to `max_bytes` or until a call takes long. All ranks call it and get the
// same result: the times of the slowest rank. Waits for the calls.
ReduceCost measure_reduction(const GradientReduction& reduction, Communicator& comm, const Device& device,
                             StreamRef stream, std::uint64_t max_bytes, Here here);

// GradientStep: one step of gradients: which gradients are ready, which calls can be issued, and the events to wait
// for. A call reduces one bucket of gradients over the ranks. Calls are issued in the order of the plan, each when
// ready() was called for all gradients of it and of the calls before it. So all ranks issue the same calls in the same
// order, whatever the order of their gradients. One thread at a time.
class GradientStep {
 public:
  // `stream` runs all calls.
  GradientStep(Communicator& comm, Stream stream, const ParameterList& parameters, const GradientReduction& reduction);

  // Between steps: takes a new plan. `memory` has the layout's bytes; `scratch` may be empty.
  void adopt(const GradientLayout& layout, const BucketPlan& plan, Range memory, Range scratch);

  Range view(std::uint32_t parameter) const { return states_[parameter].view; }
  std::size_t calls() const { return calls_.size(); }
  StreamRef stream() const { return stream_; }
  bool is_ready(std::uint32_t parameter) const { return !ended_ && states_[parameter].ready; }
  // The call after which the parameter is completely reduced.
  std::uint32_t last_call(std::uint32_t parameter) const { return states_[parameter].last_call; }
  std::span<const std::uint32_t> calls_of(std::uint32_t parameter) const {
    return std::span(touches_).subspan(states_[parameter].first_touch, states_[parameter].touches);
  }
  Range data(std::size_t call) const { return calls_[call].data; }
  DataType type(std::size_t call) const { return calls_[call].type; }

  // After end(), waits still refer to the ended step. The next step begins with its first gradient.
  bool ended() const { return ended_; }
  void begin();
  void end() { ended_ = true; }

  // Marks the gradient as ready and issues all calls that can be issued now.
  void ready(std::uint32_t parameter, StreamRef stream, GradientClock& clock, Here here);
  // Only marks the gradient as ready, for a step that is not reduced (NoSync).
  void note(std::uint32_t parameter) { states_[parameter].ready = true; }
  std::uint32_t made() const { return ended_ ? 0 : next_; }  // calls of this step that were issued
  bool is_made(std::uint32_t call) const { return ended_ || call < next_; }
  const Event& done(std::uint32_t call) const { return calls_[call].done; }
  // `stream` waits for the call, unless it waits for it already. Calls run in order, so a wait for a later call counts,
  // too.
  void await(std::uint32_t call, StreamRef stream, Here here);
  // Later waits for any gradient wait for `event`.
  void set_done(const Event& event) {
    waited_.clear();
    for (Call& call : calls_) call.done = event;
  }

  // For errors: a parameter that is not ready and that the call, or a call before it, needs.
  std::string missing(std::uint32_t call) const;
  // How text_of() describes the first parameter: by its name, or by its name, size and type.
  enum class Detail : std::uint8_t { kName, kSize };
  // The parameters of the call: the first one, and the number of the others.
  std::string text_of(std::uint32_t call, Detail detail = Detail::kSize) const;
  // The first parameter that is not ready; the number of parameters if all are.
  std::uint32_t first_missing() const {
    return static_cast<std::uint32_t>(std::ranges::find(states_, false, &ParameterState::ready) - states_.begin());
  }

 private:
  struct Mark {  // recorded by a stream after the last gradient that it writes for a call
    std::uint64_t stream = 0;
    Event event;
    std::optional<StreamRef> postponed;  // the stream, while its record is still to come
  };
  struct Call {
    Range data, scratch;
    DataType type = DataType::kF32;
    std::uint32_t touched = 0, pending = 0;  // gradients in its bucket; those not ready yet
    std::uint32_t marked = 0;                // number of `marks` that this step uses
    bool by_one_stream = false;              // in the step before, that of marks[0]
    std::vector<Mark> marks;
    Event done;
  };
  struct ParameterState {
    Range view;
    bool ready = false;
    std::uint32_t first_touch = 0, touches = 0, last_call = 0;
  };
  void mark(Call& call, StreamRef stream, Here here);
  void make(std::uint32_t index, GradientClock& clock, Here here);

  Communicator& comm_;
  const ParameterList& parameters_;
  const GradientReduction& reduction_;
  Stream stream_;
  std::vector<ParameterState> states_;  // by parameter
  std::vector<Call> calls_;             // in the order of the plan
  std::vector<std::uint32_t> touches_;  // the calls of each parameter, parameter by parameter
  struct Waited {
    std::uint64_t stream = 0;
    std::uint32_t call = 0;  // the last call that the stream waits for in this step
  };
  std::vector<Waited> waited_;
  std::uint32_t next_ = 0;  // the next call to issue
  bool ended_ = true;
};

}  // namespace slip::flow
