// FailureCheck: while a call waits, it detects that the wait cannot end: an abort, a failed, lost or departed rank, a
// rank that made other calls, or the deadline. CallWaiter and CallRun use it. Each error names the ranks and the call.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "comm/host/wait_condition.hpp"

namespace slip::comm {

class FailureCheck {
 public:
  FailureCheck(CallContext& context, const ActiveCall& call, WaitCondition& condition)
      : context_(context), call_(call), condition_(condition) {}

  // A new wait begins: its deadline is set by the next has_failed().
  void restart() { deadline_ns_ = 0; }

  // Whether the wait has failed, or this rank should ask the awaited rank for its history. throw_if_failed() then
  // throws the reason. If the ranks of this host posted different calls, this function itself throws CallMismatch.
  bool has_failed();
  void throw_if_failed();

  // Reports this rank's failure to the ranks of this host and to all others, unless another rank has failed before.
  void report(ErrorCode code, const std::string& text) const;
  // The cause of the error `met`: why a link was closed, or the first call that differs.
  Error with_cause(const Error& met) const;
  [[noreturn]] void throw_loss() const;

 private:
  void compare_with_posted();
  void exclude_suspension(std::int64_t now);
  bool waits_for_departed();
  bool link_waits_for_departed();
  void ask_for_history();
  // The first call in which the histories of the two ranks differ; none if the other rank does not answer in time.
  std::optional<std::pair<Signature, Signature>> difference_from(int rank, std::chrono::milliseconds time) const;
  CallMismatch first_mismatch(const CallMismatch& met) const;
  [[noreturn]] void throw_departed(int rank) const;
  [[noreturn]] void throw_timeout() const;

  CallContext& context_;
  const ActiveCall& call_;
  WaitCondition& condition_;
  std::int64_t deadline_ns_ = 0;   // of the current wait; 0: not set yet
  std::int64_t checked_ns_ = 0;    // when the last has_failed() looked at it
  std::int64_t suspended_ns_ = 0;  // the part of Bootstrap::suspended_ns() that the deadline excludes already
  bool may_extend_ = false;        // the deadline of this wait was not extended because of a long pause
  std::int64_t ask_ns_ = 0;        // when this rank next asks the awaited rank for its history
  std::int64_t ask_pause_ns_ = 0;
};

}  // namespace slip::comm
