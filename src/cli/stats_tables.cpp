#include "cli/stats_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "cli/inputs.hpp"

namespace slip::cli {
namespace {

double share(Picos part, Picos whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Keeps the first `top` items of this order; the rest is not sorted.
template <class Item, class Before>
void keep_first(std::vector<Item>& items, std::size_t top, const Before& before) {
  const std::size_t kept = std::min(top, items.size());
  std::partial_sort(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(kept), items.end(), before);
  items.resize(kept);
}

// A merged trace prints the rank; --json always has the device number.
Cell device_of(const Studied& studied, std::uint32_t device) {
  Cell cell = number(static_cast<std::int64_t>(device));
  if (!studied.data.devices.empty()) cell.text = device_text(studied.data, device);
  return cell;
}
Cell stream_of(std::uint64_t stream) { return number(static_cast<std::int64_t>(stream)); }

constexpr std::size_t kMaxName = 26;

std::string_view name_of(const TraceSpan& span) { return span.name.empty() ? kind_name(span.kind) : span.name; }

// All ops of one name that waited for ops of one other name, for the same cause.
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
    // One key of three numbers: there are fewer names than ops, and fewer than 2^30 ops.
    const std::uint64_t key = ((std::uint64_t{op} << 30) + after) * kCauses + static_cast<std::uint64_t>(start.cause);
    const auto [found, fresh] = places.try_emplace(key, result.size());
    if (fresh) result.push_back({op, after, start.cause, 0, 0});
    ++result[found->second].times;
    result[found->second].idle += start.idle;
  }
  return result;
}

}  // namespace

Cell op_name(std::string_view name) {
  Cell cell = word(std::string(name));
  if (name.size() > kMaxName) {
    std::size_t end = kMaxName - 3;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
    cell.text = fmt::format("{}...", name.substr(0, end));
  }
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  std::replace_if(cell.text.begin(), cell.text.end(), control, '?');
  return cell;
}

Studied::Studied(const TraceData& trace)
    : data(trace), spans(trace.spans()), figures(slip::figures(spans)), analysis(analyse(trace, spans)) {
  streams = trace.streams().size();
  std::unordered_map<std::string_view, std::uint32_t> known;
  name_of.reserve(spans.size());
  bool any = false;
  for (const TraceSpan& span : spans) {
    const std::string_view name = cli::name_of(span);
    // Most ops have the name of the previous op.
    if (name_of.empty() || names[name_of.back()] != name) {
      const auto [found, fresh] = known.try_emplace(name, static_cast<std::uint32_t>(names.size()));
      if (fresh) names.push_back(name);
      name_of.push_back(found->second);
    } else {
      name_of.push_back(name_of.back());
    }
    not_run += span.run == nullptr;
    if (!span.run || span.annotation) continue;
    unsubmitted += span.submit == nullptr;
    begin = any ? std::min(begin, span.started) : span.started;
    any = true;
  }
}

PathTime path_time(const Studied& studied) {
  PathTime result;
  Picos at = studied.begin;
  for (const std::uint32_t index : studied.analysis.critical) {
    const TraceSpan& span = studied.spans[index];
    const Picos start = std::max(at, span.started);  // clock jitter may date a start before its cause
    result.waits[static_cast<std::size_t>(studied.analysis.starts[index].cause)] += start - at;
    result.ops += std::max(span.ended, start) - start;
    at = std::max(span.ended, start);
  }
  return result;
}

Table engine_table(const Studied& studied) {
  const std::vector<EngineTime>& engines = studied.analysis.engines;
  const auto title = [&](Cause cause) {  // a cause that does not occur needs no column
    const bool seen = std::any_of(engines.begin(), engines.end(),
                                  [&](const EngineTime& engine) { return engine.idle_for(cause) > 0; });
    if (!seen) return std::string();
    return std::string(cause == Cause::kDependency ? "depend."
                                                   : cause_name(cause));  // short, so that all columns fit a line
  };
  Table table("engines: busy, and idle by what the next op was waiting for",
              {{"device", "device"},
               {"engine", "engine"},
               {"ops", "ops"},
               {"sum", "sum"},
               {"busy", "busy"},
               {"", "busy_percent"},
               {title(Cause::kHost), "idle_host"},
               {title(Cause::kDependency), "idle_dependency"},
               {title(Cause::kQueue), "idle_queue"},
               {title(Cause::kEngine), "idle_engine"},
               {title(Cause::kPeer), "idle_peer"},
               {title(Cause::kUnknown), "idle_unknown"},
               {"done", "done"}});
  for (const EngineTime& engine : engines) {
    table.row({device_of(studied, engine.device), word(engine_name(engine.engine)),
               number(static_cast<std::int64_t>(engine.ops)), time(engine.sum), time(engine.busy),
               percent(share(engine.busy, studied.figures.total)), time(engine.idle_for(Cause::kHost)),
               time(engine.idle_for(Cause::kDependency)), time(engine.idle_for(Cause::kQueue)),
               time(engine.idle_for(Cause::kEngine)), time(engine.idle_for(Cause::kPeer)),
               time(engine.idle_for(Cause::kUnknown)), time(engine.done)});
  }
  return table;
}

Table device_table(const Studied& studied) {
  const bool communicates = studied.figures.communication > 0;
  Table table("devices, each by itself", {{"device", "device"},
                                          {"ops", "ops"},
                                          {"total", "total"},
                                          {"bound", "bound"},
                                          {"idle", "idle"},
                                          {"copy", "copy"},
                                          {"overlap", "overlap_percent"},
                                          {"exposed", "exposed"},
                                          {communicates ? "comm." : "", "communication"},
                                          {communicates ? "overlap" : "", "communication_percent"},
                                          {communicates ? "exposed" : "", "communication_exposed"}});
  const auto add = [&](std::uint32_t device, const Figures& figures) {
    table.row({device_of(studied, device), number(static_cast<std::int64_t>(figures.ops)), time(figures.total),
               time(figures.bound), time(figures.idle), time(figures.copy), percent(figures.overlap_percent()),
               time(figures.exposed), time(figures.communication), percent(figures.communication_percent()),
               time(figures.communication_exposed)});
  };
  std::map<std::uint32_t, std::size_t> ops;
  for (const EngineTime& engine : studied.analysis.engines) ops[engine.device] += engine.ops;
  if (ops.size() == 1) {  // one device: its figures are those of the whole trace
    add(ops.begin()->first, studied.figures);
    return table;
  }
  std::map<std::uint32_t, std::vector<TraceSpan>> devices;
  for (const auto& [device, count] : ops) devices[device].reserve(count);
  for (const TraceSpan& span : studied.spans) {
    if (span.run) devices[span.device].push_back(span);
  }
  for (const auto& [device, spans] : devices) add(device, figures(spans));
  return table;
}

Table path_wait_table(const Studied& studied) {
  const PathTime path = path_time(studied);
  Table table("critical path: what the time went to", {{"what", "what"}, {"time", "time"}, {"of total", "percent"}});
  const auto add = [&](std::string what, Picos spent) {
    table.row({word(std::move(what)), time(spent), percent(share(spent, studied.figures.total))});
  };
  add("ops", path.ops);
  for (std::size_t i = 0; i < kCauses; ++i) {
    const auto cause = static_cast<Cause>(i);
    if (path.waits[i] > 0) add(fmt::format("waiting: {}", cause_name(cause)), path.waits[i]);
  }
  return table;
}

Table stretch_table(const Studied& studied, std::size_t top) {
  struct Stretch {
    const TraceSpan* first;
    const TraceSpan* last;
    std::int64_t ops;
    Picos time() const { return last->ended - first->started; }
  };
  std::vector<Stretch> stretches;
  for (const std::uint32_t index : studied.analysis.critical) {
    const TraceSpan& span = studied.spans[index];
    const bool goes_on = !stretches.empty() && stretches.back().last->device == span.device &&
                         stretches.back().last->engine == span.engine;
    if (goes_on) stretches.back().last = &span, ++stretches.back().ops;
    else stretches.push_back({&span, &span, 1});
  }
  keep_first(stretches, top, [](const Stretch& a, const Stretch& b) { return a.time() > b.time(); });
  Table table("critical path: the longest stretches on one engine", {{"device", "device"},
                                                                     {"engine", "engine"},
                                                                     {"from", "from"},
                                                                     {"time", "time"},
                                                                     {"ops", "ops"},
                                                                     {"first op", "first"},
                                                                     {"last op", "last"}});
  for (const Stretch& stretch : stretches)
    table.row({device_of(studied, stretch.first->device), word(engine_name(stretch.first->engine)),
               time(stretch.first->started - studied.begin), time(stretch.time()), number(stretch.ops),
               op_name(name_of(*stretch.first)), op_name(name_of(*stretch.last))});
  return table;
}

Table max_table(const Studied& studied, std::size_t top) {
  std::vector<std::uint32_t> ops = studied.analysis.critical;
  const auto lasts = [&](std::uint32_t op) { return studied.spans[op].ended - studied.spans[op].started; };
  keep_first(ops, top, [&](std::uint32_t a, std::uint32_t b) {
    return lasts(a) != lasts(b) ? lasts(a) > lasts(b) : studied.spans[a].started < studied.spans[b].started;
  });
  Table table("critical path: the longest ops", {{"op", "name"},
                                                 {"stream", "stream"},
                                                 {"", "position"},
                                                 {"engine", "engine"},
                                                 {"from", "from"},
                                                 {"time", "time"},
                                                 {"waited for", "cause"},
                                                 {"", "file"},
                                                 {"", "line"}});
  for (const std::uint32_t op : ops) {
    const TraceSpan& span = studied.spans[op];
    table.row({op_name(name_of(span)), stream_of(span.stream), stream_of(span.position), word(engine_name(span.engine)),
               time(span.started - studied.begin), time(lasts(op)), word(cause_name(studied.analysis.starts[op].cause)),
               word(std::string(span.file)), number(span.line)});
  }
  return table;
}

Table name_table(const Studied& studied, std::size_t top) {
  struct Named {
    std::uint32_t name = 0;
    std::int64_t ops = 0, on_path = 0;
    Picos time = 0, path_time = 0, min_slack = 0;
  };
  std::vector<Named> named(studied.names.size());
  for (std::uint32_t i = 0; i < studied.spans.size(); ++i) {
    const TraceSpan& span = studied.spans[i];
    if (!span.run || span.annotation) continue;
    Named& op = named[studied.name_of[i]];
    const Picos slack = studied.analysis.slack[i];
    op.min_slack = op.ops == 0 ? slack : std::min(op.min_slack, slack);
    ++op.ops;
    op.time += span.ended - span.started;
  }
  for (const std::uint32_t i : studied.analysis.critical) {
    Named& op = named[studied.name_of[i]];
    ++op.on_path;
    op.path_time += studied.spans[i].ended - studied.spans[i].started;
  }
  for (std::uint32_t i = 0; i < named.size(); ++i) named[i].name = i;
  std::erase_if(named, [](const Named& op) { return op.ops == 0; });
  keep_first(named, top, [](const Named& a, const Named& b) {
    return std::tuple(-a.path_time, -a.time, a.name) < std::tuple(-b.path_time, -b.time, b.name);
  });
  Table table("ops by name, those with most time on the critical path first", {{"op", "name"},
                                                                               {"ops", "ops"},
                                                                               {"time", "time"},
                                                                               {"on path", "path_ops"},
                                                                               {"time on path", "path_time"},
                                                                               {"of total", "path_percent"},
                                                                               {"least slack", "least_slack"}});
  for (const Named& op : named)
    table.row({op_name(studied.names[op.name]), number(op.ops), time(op.time), number(op.on_path), time(op.path_time),
               percent(share(op.path_time, studied.figures.total)), time(op.min_slack)});
  return table;
}

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
