// Traces, the race checker, and their reports as plain Python data (slipstream/_reports.py gives it types).
#include "trace.hpp"

namespace slip::python {
namespace {

// Python sees the text of names; the views would outlive their owner.
py::str str(std::string_view text) { return {text.data(), text.size()}; }

py::dict dict_of(const OpPlace& place) {
  py::dict result;
  result["stream"] = place.stream;
  result["stream_name"] = str(place.stream_name);
  result["position"] = place.position;
  result["name"] = str(place.name);
  result["file"] = str(place.file);
  result["line"] = place.line;
  return result;
}

py::dict dict_of(const RaceSide& side) {
  py::dict result = dict_of(static_cast<const OpPlace&>(side));
  result["writes"] = side.writes;
  return result;
}

py::dict dict_of(const RaceReport& report) {
  py::list races, fixes;
  for (const Race& race : report.races) {
    py::dict each;
    each["first"] = dict_of(race.first);
    each["second"] = dict_of(race.second);
    each["buffer"] = str(race.buffer_name);
    each["offset"] = race.offset;
    each["bytes"] = race.bytes;
    each["times"] = race.times;
    races.append(each);
  }
  for (const RaceFix& fix : report.fixes) {
    py::dict each;
    each["after"] = dict_of(fix.after);
    each["before"] = dict_of(fix.before);
    fixes.append(each);
  }
  py::dict result;
  result["races"] = races;
  result["fixes"] = fixes;
  result["ops"] = report.ops;
  result["opaque"] = report.opaque;
  result["dropped"] = report.dropped;
  result["text"] = report.text();
  return result;
}

py::dict dict_of(const CheckReport& report) {
  py::list superfluous, falsely, deadlocks;
  for (const SuperfluousWait& wait : report.superfluous) {
    py::dict each;
    each["after"] = dict_of(wait.after);
    each["before"] = dict_of(wait.before);
    each["file"] = str(wait.file);
    each["line"] = wait.line;
    each["times"] = wait.times;
    each["implied"] = wait.implied;
    each["cost_ps"] = wait.cost_known ? py::object(py::int_(wait.cost)) : py::none();
    superfluous.append(each);
  }
  for (const FalseDependency& dependency : report.false_dependencies) {
    py::dict each;
    each["held"] = dict_of(dependency.held);
    each["by"] = dict_of(dependency.by);
    each["queue"] = dependency.queue;
    each["times"] = dependency.times;
    each["cost_ps"] = dependency.cost_known ? py::object(py::int_(dependency.cost)) : py::none();
    falsely.append(each);
  }
  for (const Deadlock& deadlock : report.deadlocks) {
    py::list cycle;
    for (const Deadlock::Step& step : deadlock.cycle) cycle.append(py::make_tuple(dict_of(step.op), str(step.because)));
    deadlocks.append(cycle);
  }
  py::dict result;
  result["races"] = dict_of(report.races);
  result["superfluous"] = superfluous;
  result["false_dependencies"] = falsely;
  result["deadlocks"] = deadlocks;
  result["clean"] = report.clean();
  result["text"] = report.text();
  return result;
}

py::list ranges_of(std::span<const TraceRange> ranges, const TraceData& data) {
  py::list result;
  for (const TraceRange& range : ranges) {
    const TraceBuffer* const buffer = data.buffer(range.buffer);
    result.append(py::make_tuple(buffer ? str(buffer->name) : py::str(""), range.offset, range.bytes));
  }
  return result;
}

py::list spans_of(const TraceObject& self) {
  const TraceData& data = *self.data;
  std::vector<TraceSpan> spans;
  std::vector<TraceStream> streams;
  unlocked([&] { spans = data.spans(), streams = data.streams(); });
  py::dict names;
  for (const TraceStream& stream : streams) names[py::int_(stream.id)] = str(stream.name);
  py::list result;
  for (const TraceSpan& span : spans) {
    py::dict each;
    each["name"] = str(span.name);
    each["kind"] = op_kind_name(span.kind);
    each["engine"] = engine_name(span.engine);
    each["device"] = span.device;
    each["stream"] = span.stream;
    each["stream_name"] = names.attr("get")(span.stream, "");
    each["file"] = str(span.file);
    each["line"] = span.line;
    each["queued_ps"] = span.queued;
    each["started_ps"] = span.run ? py::object(py::int_(span.started)) : py::none();
    each["ended_ps"] = span.run ? py::object(py::int_(span.ended)) : py::none();
    each["reads"] = ranges_of(span.reads, data);
    each["writes"] = ranges_of(span.writes, data);
    result.append(each);
  }
  return result;
}

py::dict stats_of(const TraceObject& self) {
  Figures all;
  Analysis why;
  std::vector<TraceSpan> spans;
  unlocked([&] {
    spans = self.data->spans();
    all = figures(spans);
    why = analyse(*self.data, spans);
  });
  py::dict busy, result;
  for (std::size_t i = 0; i < kEngines; ++i) busy[engine_name(static_cast<Engine>(i))] = all.busy[i];
  py::list critical;
  for (const std::uint32_t index : why.critical)
    critical.append(py::make_tuple(str(spans[index].name), start_cause_name(why.starts[index].cause)));
  result["ops"] = all.ops;
  result["total_ps"] = all.total;
  result["idle_ps"] = all.idle;
  result["busy_ps"] = busy;
  result["copy_ps"] = all.copy;
  result["overlapped_ps"] = all.overlapped;
  result["exposed_ps"] = all.exposed;
  result["communication_ps"] = all.communication;
  result["communication_exposed_ps"] = all.communication_exposed;
  result["bound_ps"] = all.bound;
  result["critical_path"] = critical;
  return result;
}

// An observer that Python starts and stops. At exit it is leaked: detached threads may still report to it.
template <class Recorder>
struct RecorderObject {
  std::unique_ptr<Recorder> recorder = unlocked([] { return std::make_unique<Recorder>(); });
  ~RecorderObject() {
    if (closing()) static_cast<void>(recorder.release());
    else unlocked([&] { recorder.reset(); });
  }
  void stop() {
    unlocked([&] { recorder->stop(); });
  }
};

}  // namespace

void bind_trace(py::module_& module) {
  py::class_<TraceObject, std::shared_ptr<TraceObject>>(module, "TraceData", "The contents of a trace.")
      .def_static("read",
                  [](const std::string& path) {
                    const Here here = caller();
                    auto data = unlocked([&] { return std::make_shared<const TraceData>(read_trace(path, here)); });
                    return TraceObject{std::move(data)};
                  })
      .def_property_readonly("dropped", [](const TraceObject& self) { return self.data->dropped; })
      .def("spans", spans_of)
      .def("stats", stats_of)
      .def("check", [](const TraceObject& self) { return dict_of(unlocked([&] { return check_trace(*self.data); })); })
      .def("save",
           [](const TraceObject& self, const std::string& path) {
             const Here here = caller();
             unlocked([&] { write_trace(*self.data, path, here); });
           })
      .def("html", [](const TraceObject& self, const std::string& path, const std::string& title,
                      const TraceObject* prediction) {
        const Here here = caller();
        unlocked([&] {
          write_page(*self.data, path, {.title = title, .prediction = prediction ? prediction->data.get() : nullptr},
                     here);
        });
      });

  using TraceRecorder = RecorderObject<Trace>;
  py::class_<TraceRecorder>(module, "TraceRecorder", "Records the streams of the process from its construction.")
      .def(py::init<>())
      .def("stop", &TraceRecorder::stop)
      .def("data", [](const TraceRecorder& self) {
        auto data = unlocked([&] { return std::make_shared<const TraceData>(self.recorder->data()); });
        return TraceObject{std::move(data)};
      });

  using Checker = RecorderObject<RaceChecker>;
  py::class_<Checker>(module, "RaceChecker", "Checks the running program from its construction.")
      .def(py::init<>())
      .def("stop", &Checker::stop)
      .def("report", [](const Checker& self) { return dict_of(unlocked([&] { return self.recorder->report(); })); });
}

}  // namespace slip::python
