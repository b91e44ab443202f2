// PassHistory: observations of the last steps of a pass. They are the order of its uses, the pass that followed, and
// the times of its uses if the program gave none.
//
// One thread at a time. Between begin() and the end of a step nothing is allocated.
#pragma once

#include <optional>
#include <vector>

#include "flow/weights/streamed_pass.hpp"

namespace slip::flow {

class PassHistory {
 public:
  std::uint32_t follower = 0;  // the pass that followed last time

  void reserve(std::size_t uses) { earlier_.reserve(uses); }
  // A step ended with this order. Returns true if the same order, different from the planned one, came twice in a row.
  bool is_new_order(const UseOrder& planned, const UseOrder& order);

  // Measures the uses of the next step, unless a measurement is under way. The first call only records each event once
  // in `stream` (any stream of the device), which allocates. When these records are reached, a later step can be
  // measured without an allocation.
  void measure(std::size_t uses, StreamRef stream);
  void begin_use(std::uint32_t use, StreamRef stream) {
    if (state_ != State::kRecording || use >= spans_.size()) return;
    stream.record(spans_[use].begin);
    uses_ = std::size_t{use} + 1;
  }
  void end_use(std::uint32_t use, StreamRef stream) {
    if (state_ != State::kRecording || use >= spans_.size()) return;
    stream.record(spans_[use].end);
    spans_[use].ended = true;
  }
  // `planned`: the step had the planned order; otherwise its times are dropped.
  void end_step(bool planned) {
    if (state_ == State::kRecording) state_ = planned ? State::kPending : State::kIdle;
  }
  void drop_times() {  // the planned order has changed
    if (state_ == State::kPending) state_ = State::kIdle;
  }
  // The times of the uses, once, when all of them have ended. Never waits.
  std::optional<std::vector<Picos>> take_times();

 private:
  enum class State : unsigned char { kIdle, kRecording, kPending };
  struct Span {
    TimedEvent begin, end;
    bool ended = false;
  };
  UseOrder earlier_;  // of the last step, if it differed from the planned one
  State state_ = State::kIdle;
  std::size_t uses_ = 0;
  std::vector<Span> spans_;  // by use
};

}  // namespace slip::flow
