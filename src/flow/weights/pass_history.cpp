#include "flow/weights/pass_history.hpp"

#include <algorithm>

namespace slip::flow {

bool PassHistory::is_new_order(const UseOrder& planned, const UseOrder& order) {
  if (order == planned || order.empty()) {
    earlier_.clear();
    return false;
  }
  const bool again = order == earlier_;
  if (again) earlier_.clear();
  else earlier_ = order;
  return again;
}

void PassHistory::measure(std::size_t uses, StreamRef stream) {
  if (state_ != State::kIdle) return;
  if (spans_.size() < uses) {
    spans_.resize(uses);
    for (Span& span : spans_) {
      stream.record(span.begin);
      stream.record(span.end);
    }
  }
  try {
    for (const Span& span : spans_) {
      if (!span.begin.query() || !span.end.query()) return;
    }
  } catch (const Error&) {  // a stream that recorded some of them has failed: make new ones in the next step
    spans_.clear();
    return;
  }
  for (Span& span : spans_) span.ended = false;
  uses_ = 0;
  state_ = State::kRecording;
}

std::optional<std::vector<Picos>> PassHistory::take_times() {
  if (state_ != State::kPending) return std::nullopt;
  std::vector<Picos> times;
  const std::span<const Span> spans = std::span(spans_).first(uses_);
  try {
    for (const Span& span : spans) {
      if (span.ended && !span.end.query()) return std::nullopt;
    }
    for (const Span& span : spans)
      times.push_back(span.ended ? std::max<Picos>((span.end - span.begin).count() * 1000, 1) : 0);
  } catch (const Error&) {  // a stream has failed
    times.clear();
  }
  state_ = State::kIdle;
  return times;
}

}  // namespace slip::flow
