#include "comm/diagnose/rank_sight.hpp"

#include <fmt/format.h>

#include "comm/api/call.hpp"

namespace slip {
namespace {

// "a moment ago", "4.2 s ago": what has only just happened has no time yet.
std::string ago(std::int64_t ns) { return ns <= 0 ? "a moment ago" : seconds_text(ns) + " ago"; }

std::string last_call(const LedgerView& view) {
  if (view.ended == 0) return fmt::format("has made no call since it joined {}", ago(view.opened_ns));
  if (view.begun != view.ended) return fmt::format("ended call {}, {}", view.ended, ago(view.ended_ns));
  return fmt::format("ended {}, {}", call_text(view), ago(view.ended_ns));
}

std::string doing_alive(const LedgerView& view) {
  if (view.in_call() && view.waits_for != kWaitsForNobody)
    return fmt::format("waits in {} for rank {}, since {}", call_text(view), view.waits_for,
                       seconds_text(view.waits_ns));
  if (view.in_call()) return fmt::format("moves data in {}", call_text(view));
  if (view.enqueued > view.ended)
    return fmt::format("has enqueued call {}, but its stream has not come to it; it {}", view.ended + 1,
                       last_call(view));
  return last_call(view) + " and is outside Slipstream" + (view.ended > 0 ? " since" : "");
}

}  // namespace

std::string call_text(const LedgerView& view) { return Signature{view.call[0], view.call[1]}.text(); }

std::string communicator_text(const LedgerView& view) { return fmt::format("{:08x}", view.communicator & 0xffffffff); }

std::string seconds_text(std::int64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

std::string state_word(const RankSight& sight) {
  const LedgerView& view = sight.view;
  switch (view.life) {
    case LedgerLife::kFailed: return "failed";
    case LedgerLife::kAborted: return "aborted";
    case LedgerLife::kLeft: return "left";
    case LedgerLife::kFree:
    case LedgerLife::kThere: break;
  }
  if (sight.stopped()) return "stopped";
  if (sight.waits()) return "waits";
  if (view.in_call()) return "moves data";
  return view.enqueued > view.ended ? "enqueued" : "outside";
}

std::int64_t in_state_ns(const RankSight& sight) {
  const LedgerView& view = sight.view;
  if (!sight.alive()) return 0;
  if (sight.stopped()) return view.looked_ns;
  if (sight.waits()) return view.waits_ns;
  if (view.in_call()) return view.begun_ns;
  return view.ended > 0 ? view.ended_ns : view.opened_ns;
}

std::string doing(const RankSight& sight) {
  const LedgerView& view = sight.view;
  switch (view.life) {
    case LedgerLife::kFailed: return fmt::format("failed: {}", view.text);
    case LedgerLife::kAborted: return fmt::format("aborted: {}", view.text);
    case LedgerLife::kLeft: return fmt::format("has left the communicator after call {}", view.ended);
    case LedgerLife::kFree:
    case LedgerLife::kThere: break;
  }
  if (sight.stopped())
    return fmt::format("is stopped (process {}, by a signal or a debugger), since {} at most; it {}", view.pid,
                       seconds_text(view.looked_ns), doing_alive(view));
  return doing_alive(view);
}

}  // namespace slip
