// `slip stats TRACE...`: overlap, idle times and the critical path of recorded programs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/stream_text.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "slip/analysis.hpp"
#include "slip/figures.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::cli {
namespace {

struct StatsOptions {
  std::vector<std::string> paths;
  std::string json, html;
  std::size_t top = 10;
  bool ops = false;
};

struct Studied {
  explicit Studied(const TraceData& trace);
  const TraceData& data;
  std::vector<TraceSpan> spans;
  watch::StreamNames stream_names;
  Figures figures;
  Analysis analysis;
  Picos begin = 0;                // start of the first op
  std::uint64_t unsubmitted = 0;  // ops that ran but whose submission is not in the trace
  std::uint64_t not_run = 0;
  std::uint64_t streams = 0;
  std::vector<std::uint32_t> name_of;   // by span: index of its op's name in `names`
  std::vector<std::string_view> names;  // distinct names
};

// The critical path in numbers. Durations of its ops and the waits before them add up to the total.
struct PathTime {
  Picos ops = 0;
  std::array<Picos, kStartCauses> waits{};  // by the cause that delayed the op after the gap
};
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

// A merged trace prints "rank 1", or "rank 1 device 2" if the rank has several; --json always has the device number.
Cell device_of(const Studied& studied, std::uint32_t device) {
  Cell cell = number(device);
  const std::vector<TraceDevice>& devices = studied.data.devices;
  if (devices.empty()) return cell;
  const auto found = std::ranges::find(devices, device, &TraceDevice::id);
  if (found == devices.end()) cell.text = fmt::format("device {}", device);
  else if (std::ranges::count(devices, found->rank, &TraceDevice::rank) == 1)
    cell.text = fmt::format("rank {}", found->rank);
  else cell.text = fmt::format("rank {} device {}", found->rank, found->id_there);
  return cell;
}

constexpr std::size_t kMaxName = 26;

std::string_view name_of(const TraceSpan& span) { return span.name.empty() ? op_kind_name(span.kind) : span.name; }

// All ops of one name that waited for ops of one other name, for the same cause.
struct Waits {
  std::uint32_t op = 0, after = 0;
  StartCause cause = StartCause::kUnknown;
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
    const std::uint64_t key =
        ((std::uint64_t{op} << 30) + after) * kStartCauses + static_cast<std::uint64_t>(start.cause);
    const auto [found, fresh] = places.try_emplace(key, result.size());
    if (fresh) result.push_back({op, after, start.cause, 0, 0});
    ++result[found->second].times;
    result[found->second].idle += start.idle;
  }
  return result;
}

// A name as it is printed; --json has the whole name.
std::string shortened(std::string_view name) {
  std::string text(name);
  if (name.size() > kMaxName) {
    std::size_t end = kMaxName - 3;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
    text = fmt::format("{}...", name.substr(0, end));
  }
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), control, '?');
  return text;
}

Cell op_name(std::string_view name) { return {shortened(name), std::string(name)}; }

// The number of a stream, printed with its name if it has one; --json has the name by itself.
Cell stream_of(const Studied& studied, const TraceSpan& span) {
  Cell cell = number(span.stream);
  cell.text = base::stream_number(span.stream, shortened(studied.stream_names.of(span.stream)));
  return cell;
}
Cell stream_name_of(const Studied& studied, const TraceSpan& span) {
  const std::string_view name = studied.stream_names.of(span.stream);
  return name.empty() ? none() : word(std::string(name));
}

Studied::Studied(const TraceData& trace)
    : data(trace),
      spans(trace.spans()),
      stream_names(trace.of({RecordKind::kStreamOpen})),
      figures(slip::figures(spans)),
      analysis(analyse(trace, spans)) {
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
  const auto idle = [&](StartCause cause, const char* key) {  // a cause that does not occur needs no column
    const bool seen = std::ranges::any_of(engines, [&](const EngineTime& each) { return each.idle_for(cause) > 0; });
    const std::string title =
        cause == StartCause::kDependency ? "depend." : start_cause_name(cause);  // all columns fit a line
    return fmt::format("{}={}", seen ? title : "", key);
  };
  Table table("engines: busy, and idle by what the next op was waiting for",
              {"device", "engine", "ops", "sum", "busy", "=busy_percent", idle(StartCause::kHost, "idle_host"),
               idle(StartCause::kDependency, "idle_dependency"), idle(StartCause::kQueue, "idle_queue"),
               idle(StartCause::kEngine, "idle_engine"), idle(StartCause::kUnknown, "idle_unknown"), "done"});
  for (const EngineTime& engine : engines) {
    table.row({device_of(studied, engine.device), word(engine_name(engine.engine)), number(engine.ops),
               time(engine.sum), time(engine.busy), percent(share(engine.busy, studied.figures.total)),
               time(engine.idle_for(StartCause::kHost)), time(engine.idle_for(StartCause::kDependency)),
               time(engine.idle_for(StartCause::kQueue)), time(engine.idle_for(StartCause::kEngine)),
               time(engine.idle_for(StartCause::kUnknown)), time(engine.done)});
  }
  return table;
}

Table device_table(const Studied& studied) {
  const bool communicates = studied.figures.communication > 0;
  Table table("devices, each by itself", {"device", "ops", "total", "bound", "idle", "copy", "overlap=overlap_percent",
                                          "exposed", communicates ? "comm.=communication" : "=communication",
                                          communicates ? "overlap=communication_percent" : "=communication_percent",
                                          communicates ? "exposed=communication_exposed" : "=communication_exposed"});
  const auto add = [&](std::uint32_t device, const Figures& figures) {
    table.row({device_of(studied, device), number(figures.ops), time(figures.total), time(figures.bound),
               time(figures.idle), time(figures.copy), percent(figures.overlap_percent()), time(figures.exposed),
               time(figures.communication), percent(figures.communication_percent()),
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
  Table table("critical path: what the time went to", {"what", "time", "of total=percent"});
  const auto add = [&](std::string what, Picos spent) {
    table.row({word(std::move(what)), time(spent), percent(share(spent, studied.figures.total))});
  };
  add("ops", path.ops);
  for (std::size_t i = 0; i < kStartCauses; ++i) {
    const auto cause = static_cast<StartCause>(i);
    if (path.waits[i] > 0) add(fmt::format("waiting: {}", start_cause_name(cause)), path.waits[i]);
  }
  return table;
}

// The longest stretches of the critical path on one engine.
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
  Table table("critical path: the longest stretches on one engine",
              {"device", "engine", "from", "time", "ops", "first op=first", "last op=last"});
  for (const Stretch& stretch : stretches)
    table.row({device_of(studied, stretch.first->device), word(engine_name(stretch.first->engine)),
               time(stretch.first->started - studied.begin), time(stretch.time()), number(stretch.ops),
               op_name(name_of(*stretch.first)), op_name(name_of(*stretch.last))});
  return table;
}

// The longest ops of the critical path.
Table max_table(const Studied& studied, std::size_t top) {
  std::vector<std::uint32_t> ops = studied.analysis.critical;
  const auto lasts = [&](std::uint32_t op) { return studied.spans[op].ended - studied.spans[op].started; };
  keep_first(ops, top, [&](std::uint32_t a, std::uint32_t b) {
    return lasts(a) != lasts(b) ? lasts(a) > lasts(b) : studied.spans[a].started < studied.spans[b].started;
  });
  Table table("critical path: the longest ops", {"op=name", "stream", "=stream_name", "=position", "engine", "from",
                                                 "time", "waited for=cause", "=file", "=line"});
  for (const std::uint32_t op : ops) {
    const TraceSpan& span = studied.spans[op];
    table.row({op_name(name_of(span)), stream_of(studied, span), stream_name_of(studied, span), number(span.position),
               word(engine_name(span.engine)), time(span.started - studied.begin), time(lasts(op)),
               word(start_cause_name(studied.analysis.starts[op].cause)), word(std::string(span.file)),
               number(span.line)});
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
  Table table("ops by name, those with most time on the critical path first",
              {"op=name", "ops", "time", "on path=path_ops", "time on path=path_time", "of total=path_percent",
               "least slack=least_slack"});
  for (const Named& op : named)
    table.row({op_name(studied.names[op.name]), number(op.ops), time(op.time), number(op.on_path), time(op.path_time),
               percent(share(op.path_time, studied.figures.total)), time(op.min_slack)});
  return table;
}

// What ops waited for, by the idle time it caused.
Table wait_table(const Studied& studied, std::size_t top) {
  std::vector<Waits> waits = gather_waits(studied);
  keep_first(waits, top, [](const Waits& a, const Waits& b) {
    return std::tuple(-a.idle, -a.times, a.op, a.after) < std::tuple(-b.idle, -b.times, b.op, b.after);
  });
  Table table("what ops waited for last, and how long their engines stood idle until then",
              {"op=name", "waited for=cause", "after", "times", "idle"});
  for (const Waits& wait : waits)
    table.row({op_name(studied.names[wait.op]), word(start_cause_name(wait.cause)),
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
    Bucket& bucket = *std::ranges::find_if(buckets, [&](const Bucket& b) { return slack < b.below; });
    ++bucket.ops;
    bucket.time += span.ended - span.started;
  }
  Table table("slack: how much later ops could have ended without a longer run", {"slack", "ops", "time"});
  for (const Bucket& bucket : buckets) table.row({word(bucket.title), number(bucket.ops), time(bucket.time)});
  return table;
}

Table op_table(const Studied& studied) {
  Table table("every op", {"op=name", "device", "stream", "stream_name", "position", "engine", "queued", "started",
                           "ended", "ready", "waited for=cause", "after", "slack", "on path=critical"});
  std::vector<bool> critical(studied.spans.size());
  for (const std::uint32_t op : studied.analysis.critical) critical[op] = true;
  for (std::uint32_t i = 0; i < studied.spans.size(); ++i) {
    const TraceSpan& span = studied.spans[i];
    const StartReason& start = studied.analysis.starts[i];
    const auto when = [&](bool known, Picos value) { return known ? time(value) : none(); };
    const bool ran = span.run != nullptr;
    table.row({word(std::string(studied.names[studied.name_of[i]])), number(span.device), number(span.stream),
               stream_name_of(studied, span), number(span.position), word(engine_name(span.engine)),
               when(span.submit, span.queued), when(ran, span.started), when(ran, span.ended), when(ran, start.ready),
               ran ? word(start_cause_name(start.cause)) : none(),
               start.after == kNoSpan ? none() : number(start.after), when(ran, studied.analysis.slack[i]),
               yes_no(critical[i])});
  }
  return table;
}

// Warnings: what the trace does not contain, or only in part.
std::string gaps_in(const Studied& studied) {
  std::string text;
  if (studied.data.dropped > 0)
    text += fmt::format("{} records were dropped because the trace was full: everything here is of the rest. ",
                        studied.data.dropped);
  if (studied.unsubmitted == studied.figures.ops && studied.figures.ops > 0)
    text +=
        "The trace has no submissions, so the host is never named as a cause, and only a start that comes at once "
        "after another op is explained; slack and critical path know only the order within streams and engines. ";
  else if (studied.unsubmitted > 0)
    text += fmt::format("{} ops have no submission of their own in the trace. ", studied.unsubmitted);
  if (studied.not_run > 0) text += fmt::format("{} ops have no run and count in nothing here. ", studied.not_run);
  if (!text.empty()) text.pop_back();
  return text;
}

std::string summary(const Studied& studied) {
  const Figures& figures = studied.figures;
  std::string text;
  const auto line = [&](const char* what, const std::string& value, std::string_view meaning) {
    text += paragraph(meaning, 27, fmt::format("  {:<12}{:>11}  ", what, value));
  };
  line("ops", fmt::format("{}", figures.ops), fmt::format("on {} streams", studied.streams));
  line("total", base::format_time(figures.total), "from the first start to the last end");
  line("bound", base::format_time(figures.bound),
       "lower bound: the longest of compute, copies in and copies out, the ops of an engine one after the other, or as "
       "many at once as it ever ran");
  if (figures.bound > 0)
    line("distance", base::format_time(figures.total - figures.bound),
         fmt::format("total - bound; the total is {} the bound",
                     base::format_times(static_cast<double>(figures.total) / static_cast<double>(figures.bound))));
  line("idle", base::format_time(figures.idle), "of the total: no engine was busy");
  line("copy", base::format_time(figures.copy), "at least one copy in or out was running");
  line("overlap", base::format_percent(figures.overlap_percent()), "copy time while computing / copy time");
  line("exposed", base::format_time(figures.exposed), "copy time while nothing was computed");
  if (figures.communication == 0) return text;
  line("comm.", base::format_time(figures.communication), "at least one op with other ranks was running");
  line("overlap", base::format_percent(figures.communication_percent()),
       "communication while computing / communication");
  line("exposed", base::format_time(figures.communication_exposed), "communication while nothing was computed");
  return text;
}

Json json_of(const Figures& figures) {
  return {{"total", figures.total},
          {"from_queued", figures.from_queued},
          {"bound", figures.bound},
          {"distance", figures.total - figures.bound},
          {"idle", figures.idle},
          {"copy", figures.copy},
          {"overlapped", figures.overlapped},
          {"exposed", figures.exposed},
          {"overlap_percent", figures.overlap_percent()},
          {"communication", figures.communication},
          {"communication_overlapped", figures.communication_overlapped},
          {"communication_exposed", figures.communication_exposed},
          {"communication_percent", figures.communication_percent()}};
}

// Prints the tables and returns them as JSON.
Json report(const std::string& path, const Studied& studied, const StatsOptions& options) {
  const auto show = [](const Table& table) {
    fmt::print("\n{}", table.text());
    return cli::json_of(table);
  };
  fmt::print("{}\n{}", path, summary(studied));
  const std::string gaps = gaps_in(studied);
  if (!gaps.empty()) fmt::print("\n{}", paragraph(gaps, 4, "  ! "));
  Json found = {{"file", path},
                {"ops", studied.figures.ops},
                {"not_run", studied.not_run},
                {"unsubmitted", studied.unsubmitted},
                {"dropped", studied.data.dropped},
                {"streams", studied.streams},
                {"figures", json_of(studied.figures)}};
  if (!studied.data.devices.empty()) {
    Json devices = Json::array();
    for (const TraceDevice& device : studied.data.devices)
      devices.push_back({{"device", device.id}, {"rank", device.rank}, {"device_of_rank", device.id_there}});
    found["ranks"] = std::move(devices);
  }
  if (studied.figures.ops == 0) return found;
  const Table devices = device_table(studied);
  found["devices"] = devices.rows().size() > 1 ? show(devices) : cli::json_of(devices);
  found["engines"] = show(engine_table(studied));
  const PathTime path_times = path_time(studied);
  Json waits = Json::object();
  for (std::size_t i = 0; i < kStartCauses; ++i)
    waits[start_cause_name(static_cast<StartCause>(i))] = path_times.waits[i];
  static_cast<void>(show(path_wait_table(studied)));
  found["critical_path"] = {{"ops", studied.analysis.critical.size()}, {"time", path_times.ops}, {"waits", waits}};
  found["critical_path"]["stretches"] = show(stretch_table(studied, options.top));
  found["critical_path"]["longest"] = show(max_table(studied, options.top));
  found["names"] = show(name_table(studied, options.top));
  found["slack"] = show(slack_table(studied));
  found["waits"] = show(wait_table(studied, options.top));
  if (options.ops) found["all_ops"] = cli::json_of(op_table(studied));
  return found;
}

int run_stats(const StatsOptions& options) {
  if (options.ops && options.json.empty()) throw UsageError("--ops is for --json: the ops are not printed");
  Json all = Json::array();
  const std::vector<NamedTrace> traces = read_traces(options.paths);
  if (!options.html.empty() && traces.size() > 1)
    throw UsageError(
        fmt::format("--html shows one trace, and {} are given that are not ranks of one job", options.paths.size()));
  for (const auto& [name, trace] : traces) {
    if (&name != &traces.front().name) fmt::print("\n");
    all.push_back(report(name, Studied(trace), options));
    if (!options.html.empty()) write_html(trace, options.html, name.substr(name.rfind('/') + 1));
  }
  write_json(options.json, {{"traces", std::move(all)}});
  return kSuccess;
}

}  // namespace

std::function<int()> add_stats(CLI::App& app) {
  auto options = std::make_shared<StatsOptions>();
  CLI::App* stats = app.add_subcommand("stats", "Figures of traces: overlap, idle time by cause, critical path, slack");
  stats->footer(
      "\nCauses: host (it submitted late), dependency (an op before it in its stream, or one waited for),\n"
      "queue (behind another stream's op in a hardware queue), engine (busy), peer (another rank had not\n"
      "arrived), unknown (nothing in the trace explains it). An engine that is done waits for nothing.");
  stats->add_option("TRACE", options->paths, "Files, each by itself; ranks of one job are one trace")->required();
  stats->add_option("--top", options->top, "How many rows the longer tables have")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000}))
      ->capture_default_str();
  add_output(*stats, "--json", options->json, "Write everything as data; times in picoseconds");
  add_output(*stats, "--html", options->html, "Write the timeline with these figures, one page");
  stats->add_flag("--ops", options->ops, "With --json: every op too, with its cause and slack");
  return [options] { return run_stats(*options); };
}

}  // namespace slip::cli
