// Tables over all ops: slack, waits, and the ops themselves.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "cli/stats_tables.hpp"

namespace slip::cli {
namespace {

// Ops of one name that waited for the same thing, after ops of one name.
struct Waits {
  std::uint32_t op = 0, after = 0;
  Cause cause = Cause::kUnknown;
  std::int64_t times = 0;
  Picos idle = 0;
};

std::vector<Waits> gather_waits(const Studied& studied) {
  const auto nothing = static_cast<std::uint32_t>(studied.names.size());
  std::vector<Waits> result;
  std::unordered_map<std::uint64_t, std::size_t> places;
  for (std::uint32_t i = 0; i < studied.spans.size(); ++i) {
    if (!studied.spans[i].run || studied.spans[i].annotation) continue;
    const StartReason& start = studied.analysis.starts[i];
    const std::uint32_t op = studied.name_of[i];
    const std::uint32_t after = start.after == kNoSpan ? nothing : studied.name_of[start.after];
    // Names are fewer than ops, and those fewer than 2^30: three numbers in one.
    const std::uint64_t key = ((std::uint64_t{op} << 30) + after) * kCauses + static_cast<std::uint64_t>(start.cause);
    const auto [found, fresh] = places.try_emplace(key, result.size());
    if (fresh) result.push_back({op, after, start.cause, 0, 0});
    ++result[found->second].times;
    result[found->second].idle += start.idle;
  }
  return result;
}

}  // namespace

Table wait_table(const Studied& studied, std::size_t top) {
  std::vector<Waits> waits = gather_waits(studied);
  const std::size_t kept = std::min(top, waits.size());
  std::partial_sort(waits.begin(), waits.begin() + static_cast<std::ptrdiff_t>(kept), waits.end(),
                    [](const Waits& a, const Waits& b) {
                      return std::tuple(-a.idle, -a.times, a.op, a.after) <
                             std::tuple(-b.idle, -b.times, b.op, b.after);
                    });
  waits.resize(kept);
  Table table("what ops waited for last, and how long their engines stood idle until then",
              {{"op", "name"}, {"waited for", "cause"}, {"after", "after"}, {"times", "times"}, {"idle", "idle"}});
  for (const Waits& wait : waits)
    table.row({op_name(studied.names[wait.op]), word(cause_name(wait.cause)),
               wait.after < studied.names.size() ? op_name(studied.names[wait.after]) : none(), number(wait.times),
               time(wait.idle)});
  return table;
}

Table slack_table(const Studied& studied) {
  struct Bucket {
    const char* title;
    Picos below;
    std::int64_t ops = 0;
    Picos time = 0;
  };
  const Picos total = studied.figures.total;
  std::array<Bucket, 4> buckets = {{{"none", 1},
                                    {"up to 1 % of the total", total / 100 + 1},
                                    {"up to 10 %", total / 10 + 1},
                                    {"more", std::numeric_limits<Picos>::max()}}};
  for (std::uint32_t i = 0; i < studied.spans.size(); ++i) {
    const TraceSpan& span = studied.spans[i];
    if (!span.run || span.annotation) continue;
    const Picos slack = studied.analysis.slack[i];
    Bucket& bucket =
        *std::find_if(buckets.begin(), buckets.end() - 1, [&](const Bucket& b) { return slack < b.below; });
    ++bucket.ops;
    bucket.time += span.ended - span.started;
  }
  Table table("slack: how much later ops could have ended without a longer run",
              {{"slack", "slack"}, {"ops", "ops"}, {"time", "time"}});
  for (const Bucket& bucket : buckets) table.row({word(bucket.title), number(bucket.ops), time(bucket.time)});
  return table;
}

Table op_table(const Studied& studied) {
  Table table("every op", {{"op", "name"},
                           {"device", "device"},
                           {"stream", "stream"},
                           {"position", "position"},
                           {"engine", "engine"},
                           {"queued", "queued"},
                           {"started", "started"},
                           {"ended", "ended"},
                           {"ready", "ready"},
                           {"waited for", "cause"},
                           {"after", "after"},
                           {"slack", "slack"},
                           {"on path", "critical"}});
  std::vector<bool> critical(studied.spans.size());
  for (const std::uint32_t op : studied.analysis.critical) critical[op] = true;
  for (std::uint32_t i = 0; i < studied.spans.size(); ++i) {
    const TraceSpan& span = studied.spans[i];
    const StartReason& start = studied.analysis.starts[i];
    const auto count = [](std::uint64_t value) { return number(static_cast<std::int64_t>(value)); };
    const auto when = [&](bool known, Picos value) { return known ? time(value) : none(); };
    const bool ran = span.run != nullptr;
    table.row({word(std::string(studied.names[studied.name_of[i]])), count(span.device), count(span.stream),
               count(span.position), word(engine_name(span.engine)), when(span.submit, span.queued),
               when(ran, span.started), when(ran, span.ended), when(ran, start.ready),
               ran ? word(cause_name(start.cause)) : none(), start.after == kNoSpan ? none() : count(start.after),
               when(ran, studied.analysis.slack[i]), yes_no(critical[i])});
  }
  return table;
}

}  // namespace slip::cli
