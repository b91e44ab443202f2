// One step of gradients: who is there, which calls can be made, and what waits for them. The plan's calls are made in
// its order, each when all gradients that it touches were told of; so all ranks make the same calls in the same order,
// whatever the order of their gradients.
#pragma once

#include <span>
#include <vector>

#include "flow/gradients/gradient_clock.hpp"
#include "flow/gradients/gradient_reduction.hpp"
#include "flow/gradients/gradient_set.hpp"

namespace slip {

class GradientStep {
 public:
  GradientStep(Communicator& comm, const Device& device, const ParameterList& parameters,
               const GradientReduction& reduction);

  // Between steps. The memory is the layout's; without a scratch range there is none.
  void adopt(const GradientLayout& layout, const BucketPlan& plan, Range memory, Range scratch);

  Range view(std::uint32_t parameter) const { return states_[parameter].view; }
  std::size_t calls() const { return calls_.size(); }
  StreamRef stream() const { return stream_; }
  bool is_ready(std::uint32_t parameter) const { return !ended_ && states_[parameter].ready; }
  // The call after whose end all of the parameter is reduced.
  std::uint32_t last_call(std::uint32_t parameter) const { return states_[parameter].last_call; }
  std::span<const std::uint32_t> calls_of(std::uint32_t parameter) const {
    return std::span(touches_).subspan(states_[parameter].first_touch, states_[parameter].touches);
  }
  Range data(std::size_t call) const { return calls_[call].data; }
  DataType type(std::size_t call) const { return calls_[call].type; }

  // A step that has ended is still the one that is waited for, until the next one begins with its first gradient.
  bool ended() const { return ended_; }
  void begin();
  void end() { ended_ = true; }

  // The gradient is there, and all calls are made that can be.
  void ready(std::uint32_t parameter, StreamRef stream, GradientClock& clock, Here here);
  // In a step that is not reduced.
  void note(std::uint32_t parameter) { states_[parameter].ready = true; }
  std::uint32_t made() const { return ended_ ? 0 : next_; }  // calls of this step
  bool is_made(std::uint32_t call) const { return ended_ || call < next_; }
  const Event& done(std::uint32_t call) const { return calls_[call].done; }
  // What waits for any gradient from now on waits for this.
  void set_done(const Event& event);

  // The parameters that keep the call from being made, the first one in any case; for errors.
  std::string missing(std::uint32_t call) const;
  // The parameters that it touches: the first one, and how many more.
  enum class Detail : std::uint8_t { kName, kSize };
  std::string text_of(std::uint32_t call, Detail detail = Detail::kSize) const;
  // The first parameter that was not told of, or the number of parameters.
  std::uint32_t first_missing() const;

 private:
  struct Mark {  // how far a stream has to be for the gradients of a call
    std::uint64_t stream = 0;
    Event event;
  };
  struct Call {
    Range data, scratch;
    DataType type = DataType::kF32;
    std::uint32_t touched = 0, pending = 0;  // gradients
    std::uint32_t marked = 0;
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
  Stream stream_;                       // all calls
  std::vector<ParameterState> states_;  // by parameter
  std::vector<Call> calls_;             // in the order of the plan
  std::vector<std::uint32_t> touches_;  // calls, parameter by parameter
  std::uint32_t next_ = 0;              // the call to be made next
  bool ended_ = true;
};

}  // namespace slip
