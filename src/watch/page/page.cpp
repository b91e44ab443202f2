// Writes the timeline page: web/page.html with the style, the data and the scripts inserted. The data are a block of
// base64 (columns) and a block of JSON (texts, figures, findings), in elements that no browser executes. The JSON
// contains no less-than sign, so no name can end its element. The content security policy in the page's head lists the
// hashes of its own scripts and style, so nothing else runs and nothing is loaded.
#include "slip/page.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/fail.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "base/quantity_text.hpp"
#include "slip/check.hpp"
#include "watch/page/page_data.hpp"

namespace slip {
namespace {

// In the order in which the page runs them.
constexpr std::string_view kScripts[] = {"data",    "layout", "draw",  "overview", "panel",
                                         "figures", "search", "input", "main"};

const base::EmbeddedFile& page_file(std::string_view name) {
  for (const base::EmbeddedFile& file : watch::embedded_page()) {
    if (file.name == name) return file;
  }
  base::fail(ErrorCode::kUnsupported, Here::at(), "this build has no file '{}' for the page", name);
}

std::string bytes_of_hex(std::string_view digits) {
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(static_cast<char>(value(digits[i]) * 16 + value(digits[i + 1])));
  return bytes;
}

std::string policy() {
  const auto source = [](std::string_view file) {
    return fmt::format(" 'sha256-{}'", watch::base64(bytes_of_hex(page_file(file).sha256)));
  };
  std::string scripts;
  for (const std::string_view script : kScripts) scripts += source(script);
  return fmt::format(
      "default-src 'none'; script-src{}; style-src{}; base-uri 'none'; form-action 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'",
      scripts, source("style"));
}

// --- The findings of the checks, in one form for the page. A new kind of finding needs one more add_ function. ---

struct Finding {
  std::string_view kind;             // "race", "deadlock", "superfluous wait" or "false dependency"
  std::string title;                 // one line
  std::string detail;                // an explanation, and what to do
  std::vector<OpPlace> ops;          // the ops that it names
  std::vector<std::uint32_t> spans;  // the spans of these ops
};

std::string cost_text(Picos cost, bool is_known = true) {
  if (!is_known) return "Its cost was not computed, because there were too many such waits.";
  if (cost <= 0) return "It cost nothing in this run.";
  return fmt::format("It cost {} in this run.", base::format_time(cost));
}

std::string times_text(std::uint64_t times) { return times > 1 ? fmt::format(", {} times", times) : std::string(); }

std::string side_text(const RaceSide& side) {
  return fmt::format("{} {} them.\n", side.text(), side.writes ? "writes" : "reads");
}

// The fixes of the report that are between the two streams of the race. Stream 0 is the host.
std::string fixes_text(const Race& race, const std::vector<RaceFix>& fixes) {
  std::string result;
  for (const RaceFix& fix : fixes) {
    // An open HostView is the second side of a race, but the host must end the view before the first side is issued.
    if (fix.after.stream == 0 && race.second.stream == 0 && fix.before.stream == race.first.stream) {
      result += fmt::format("\nEnd the host's view before {} is issued.", fix.before.text());
      continue;
    }
    if (fix.after.stream != race.first.stream || fix.before.stream != race.second.stream) continue;
    if (fix.after.stream == 0 || fix.before.stream == 0)
      result += fmt::format("\nLet the host wait between {} and {}.", fix.after.text(), fix.before.text());
    else
      result +=
          fmt::format("\nRecord an event after {} and wait for it before {}.", fix.after.text(), fix.before.text());
  }
  return result;
}

void add_races(std::vector<Finding>& list, const RaceReport& report) {
  for (const Race& race : report.races) {
    list.push_back(
        {"race",
         fmt::format("'{}' and '{}' touch the same bytes of '{}'{}", race.first.name, race.second.name,
                     race.buffer_name, times_text(race.times)),
         fmt::format("Bytes {} to {}:\n{}{}Nothing orders the two accesses.{}", race.offset, race.offset + race.bytes,
                     side_text(race.first), side_text(race.second), fixes_text(race, report.fixes)),
         {race.first, race.second},
         {}});
  }
}

void add_deadlocks(std::vector<Finding>& list, const std::vector<Deadlock>& deadlocks) {
  for (const Deadlock& deadlock : deadlocks) {
    std::string detail;
    std::vector<OpPlace> ops;
    for (const Deadlock::Step& step : deadlock.cycle) {
      detail += fmt::format("{} waits for the next: {}\n", step.op.text(), step.because);
      ops.push_back(step.op);
    }
    list.push_back({"deadlock", fmt::format("{} ops wait for each other", deadlock.cycle.size()), detail, ops, {}});
  }
}

void add_superfluous(std::vector<Finding>& list, const std::vector<SuperfluousWait>& waits) {
  for (const SuperfluousWait& wait : waits) {
    const std::string place = wait.file.empty() ? std::string() : fmt::format(" ({}:{})", wait.file, wait.line);
    const bool awaits_op = !wait.after.name.empty();  // false: the wait came before the first op of the awaited stream
    list.push_back(
        {"superfluous wait",
         fmt::format("'{}' need not wait for {}{}", wait.before.name,
                     awaits_op ? fmt::format("'{}'", wait.after.name) : "a stream without work",
                     times_text(wait.times)),
         fmt::format("The wait{} holds {} until {}, and {}. {}", place, wait.before.text(),
                     awaits_op ? wait.after.text() + " has ended" : "a point before which its stream has no op",
                     wait.implied ? "earlier waits order the same" : "no two ops need that",
                     cost_text(wait.cost, wait.cost_known)),
         {wait.after, wait.before},
         {}});
  }
}

void add_false_dependencies(std::vector<Finding>& list, const std::vector<FalseDependency>& dependencies) {
  for (const FalseDependency& found : dependencies) {
    list.push_back(
        {"false dependency",
         fmt::format("'{}' waited for '{}' without need{}", found.held.name, found.by.name, times_text(found.times)),
         fmt::format("{} was blocked by {}, with which it shares {}. {}", found.held.text(), found.by.text(),
                     found.queue ? "only a hardware queue" : "no bytes: the legacy stream ordered them",
                     cost_text(found.cost, found.cost_known)),
         {found.by, found.held},
         {}});
  }
}

std::vector<Finding> findings_of(const TraceData& trace, std::span<const TraceSpan> spans) {
  const CheckReport report = check_trace(trace);
  std::vector<Finding> list;
  add_races(list, report.races);
  add_deadlocks(list, report.deadlocks);
  add_superfluous(list, report.superfluous);
  add_false_dependencies(list, report.false_dependencies);
  std::multimap<std::pair<std::uint64_t, std::uint64_t>, Finding*> named;  // by stream and position of the op
  for (Finding& finding : list) {
    for (const OpPlace& op : finding.ops) named.insert({{op.stream, op.position}, &finding});
  }
  for (std::size_t i = 0; i < spans.size() && !named.empty(); ++i) {
    const auto [first, last] = named.equal_range({spans[i].stream, spans[i].position});
    for (auto found = first; found != last; ++found) found->second->spans.push_back(static_cast<std::uint32_t>(i));
  }
  return list;
}

// --- The JSON block, part by part. ---

class PageText {
 public:
  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }

  // Writes "key":[...] and a comma, and calls `each` for each item.
  template <class Items, class Each>
  void put_list(const char* key, const Items& items, Each each) {
    put("\"{}\":[", key);
    bool first = true;
    for (const auto& item : items) {
      if (!std::exchange(first, false)) text_.push_back(',');
      each(item);
    }
    put("],\n");
  }

  // Escapes every "<"; in JSON it occurs in strings only.
  std::string finish() {
    std::string safe;
    safe.reserve(text_.size());
    for (const char c : text_) {
      if (c == '<') safe += "\\u003c";
      else safe.push_back(c);
    }
    return safe;
  }

 private:
  fmt::memory_buffer text_;
};

void put_figures(PageText& text, std::span<const TraceSpan> spans) {
  std::map<std::uint32_t, std::vector<TraceSpan>> devices;
  for (const TraceSpan& span : spans) {
    if (span.run) devices[span.device].push_back(span);
  }
  std::vector<std::pair<std::int64_t, Figures>> list = {{-1, figures(spans)}};  // -1: all devices together
  if (devices.size() > 1)
    for (const auto& [device, own] : devices) list.emplace_back(device, figures(own));
  text.put_list("figures", list, [&](const auto& entry) {
    const Figures& f = entry.second;
    text.put(
        "{{\"device\":{},\"ops\":{},\"total\":{},\"from_queued\":{},\"idle\":{},\"busy\":[{}],\"sum\":[{}],"
        "\"copy\":{},\"overlapped\":{},\"exposed\":{},\"communication\":{},\"communication_overlapped\":{},"
        "\"communication_exposed\":{},\"bound\":{}}}",
        entry.first, f.ops, f.total, f.from_queued, f.idle, fmt::join(f.busy, ","), fmt::join(f.sum, ","), f.copy,
        f.overlapped, f.exposed, f.communication, f.communication_overlapped, f.communication_exposed, f.bound);
  });
}

void put_tables(PageText& text, const TraceData& trace, const watch::PageTables& texts) {
  const auto put_text = [&](std::string_view name) { text.put("{}", base::json_string(name)); };
  text.put_list("names", texts.names.texts(), put_text);
  text.put_list("files", texts.files.texts(), put_text);
  text.put_list("streams", texts.streams, [&](const TraceStream& stream) {
    text.put("{{\"id\":{},\"device\":{},\"name\":{}}}", stream.id, stream.device, base::json_string(stream.name));
  });
  text.put_list("devices", trace.devices, [&](const TraceDevice& device) {
    text.put("{{\"id\":{},\"rank\":{},\"id_there\":{}}}", device.id, device.rank, device.id_there);
  });
  text.put_list("buffers", trace.buffers, [&](const TraceBuffer& buffer) {
    text.put("{{\"id\":{},\"device\":{},\"kind\":\"{}\",\"bytes\":{},\"name\":{}}}", buffer.id, buffer.device,
             memory_kind_name(buffer.kind), buffer.bytes, base::json_string(buffer.name));
  });
}

// Lists the names of engines, kinds and causes: the columns contain indices into these lists.
void put_names(PageText& text) {
  const auto names = [&](const char* key, std::size_t count, auto name_of) {
    std::vector<std::string_view> list;
    for (std::size_t i = 0; i < count; ++i) list.emplace_back(name_of(i));
    text.put_list(key, list, [&](std::string_view name) { text.put("\"{}\"", name); });
  };
  names("engines", kEngines, [](std::size_t i) { return engine_name(static_cast<Engine>(i)); });
  names("kinds", kOpKinds, [](std::size_t i) { return op_kind_name(static_cast<OpKind>(i)); });
  names("causes", kStartCauses, [](std::size_t i) { return start_cause_name(static_cast<StartCause>(i)); });
}

void put_analysis(PageText& text, const Analysis& analysis, std::span<const Finding> findings,
                  const watch::PageSpans& spans) {
  text.put_list("engine_times", analysis.engines, [&](const EngineTime& time) {
    text.put("{{\"device\":{},\"engine\":{},\"busy\":{},\"idle\":[{}],\"done\":{}}}", time.device,
             static_cast<int>(time.engine), time.busy, fmt::join(time.idle, ","), time.done);
  });
  text.put_list("findings", findings, [&](const Finding& finding) {
    text.put("{{\"kind\":\"{}\",\"title\":{},\"detail\":{},\"spans\":[{}]}}", finding.kind,
             base::json_string(finding.title), base::json_string(finding.detail),
             fmt::join(spans.places(finding.spans), ","));
  });
}

void write_blocks(base::OutputFile& out, const std::string& json, const watch::Columns& columns) {
  out.write("<script type=\"application/json\" id=\"slip-data\">");
  out.write(json);
  out.write("</script>\n<script type=\"application/octet-stream\" id=\"slip-columns\">");
  constexpr std::size_t kPiece = std::size_t{3} << 16;  // a multiple of three, so that only the last piece ends in "="
  for (std::string_view bytes = columns.bytes(); !bytes.empty(); bytes.remove_prefix(std::min(kPiece, bytes.size())))
    out.write(watch::base64(bytes.substr(0, kPiece)));
  out.write("</script>\n");
}

// Writes page.html, with the content that each "<!--slip:...-->" names in its place.
void write_html(base::OutputFile& out, const std::string& json, const watch::Columns& columns) {
  constexpr std::string_view kMark = "<!--slip:", kEnd = "-->";
  std::string_view html = page_file("page").text;
  for (;;) {
    const std::size_t mark = html.find(kMark);
    out.write(html.substr(0, mark));
    if (mark == std::string_view::npos) return;
    const std::size_t end = html.find(kEnd, mark);
    const std::string_view what = html.substr(mark + kMark.size(), end - mark - kMark.size());
    if (what == "policy") out.write(policy());
    if (what == "style") out.write(page_file("style").text);
    if (what == "data") write_blocks(out, json, columns);
    if (what == "scripts") {
      for (const std::string_view script : kScripts)
        out.write(fmt::format("<script>{}</script>\n", page_file(script).text));
    }
    html.remove_prefix(end + kEnd.size());
  }
}

// Analyses the trace without claims that the trace cannot support. A foreign trace, not written by Slipstream, says
// when ops ran, not what they waited for. Unless its launches are linked to ops, all causes are unknown and there is no
// critical path.
Analysis supported_analysis(const TraceData& trace, std::span<const TraceSpan> spans) {
  Analysis result = analyse(trace, spans);
  const bool linked = std::any_of(spans.begin(), spans.end(), [](const TraceSpan& span) { return span.submit; });
  if (!trace.foreign || linked) return result;
  for (std::size_t i = 0; i < spans.size(); ++i) result.starts[i] = {StartCause::kUnknown, kNoSpan, spans[i].started};
  std::fill(result.slack.begin(), result.slack.end(), Picos{0});
  result.critical.clear();
  for (EngineTime& time : result.engines) {
    const Picos idle = std::accumulate(time.idle.begin(), time.idle.end(), Picos{0});
    time.idle = {};
    time.idle[static_cast<std::size_t>(StartCause::kUnknown)] = idle;
  }
  return result;
}

}  // namespace

void write_page(const TraceData& trace, const std::string& path, const PageOptions& options, Here here) {
  const std::vector<TraceSpan> all = trace.spans();
  const Analysis analysis = supported_analysis(trace, all);
  const watch::PageSpans spans(trace, all);
  watch::Columns columns;
  watch::PageTables texts;
  texts.streams = trace.streams();
  watch::add_span_columns(columns, spans, analysis, texts);
  watch::add_range_columns(columns, spans, trace);
  watch::add_arrow_columns(columns, spans, trace, all);
  const std::size_t matched =
      options.prediction ? watch::add_prediction_columns(columns, spans, trace, *options.prediction) : std::size_t{0};

  PageText text;
  text.put("{{\"format\":1,\"version\":\"{}\",\"title\":{}", SLIP_VERSION,
           base::json_string(options.title.empty() ? path.substr(path.rfind('/') + 1) : options.title));
  text.put(",\n\"spans\":{},\"not_run\":{},\"dropped\":{},\"foreign\":{},\"prediction\":{},\"matched\":{},\n",
           spans.size(), all.size() - spans.size(), trace.dropped, trace.foreign, options.prediction != nullptr,
           matched);
  put_names(text);
  put_tables(text, trace, texts);
  put_figures(text, all);
  put_analysis(text, analysis, findings_of(trace, all), spans);
  text.put("\"columns\":{{{}}}}}", std::string_view(columns.directory().data(), columns.directory().size()));

  base::OutputFile out(path, here);
  write_html(out, text.finish(), columns);
  out.finish();
}

}  // namespace slip
