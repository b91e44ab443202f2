// Why ops started, on a device whose times are exact: every start has its reason.
#include <fmt/format.h>

#include <random>

#include "sim/support.hpp"
#include "slip/analysis.hpp"
#include "slip/figures.hpp"
#include "watch/analysis/starts.hpp"

namespace slip::test::test_analysis {
namespace {

// Records from its construction to analyse(), then knows the ops by name.
class Watched {
 public:
  void analyse() {
    trace_.stop();
    data_ = trace_.data();
    spans_ = data_.spans();
    result_ = slip::analyse(data_, spans_);
  }
  std::uint32_t index(const std::string& name) const {
    for (std::uint32_t i = 0; i < spans_.size(); ++i) {
      if (spans_[i].name == name) return i;
    }
    ADD_FAILURE() << "no op " << name;
    return 0;
  }
  // "engine after b, ready 5 us": in whole nanoseconds.
  std::string why(const std::string& name) const {
    const StartReason& start = result_.starts[index(name)];
    return fmt::format("{}{}, ready {}", start_cause_name(start.cause),
                       start.after == kNoSpan ? "" : fmt::format(" after {}", spans_[start.after].name),
                       start.ready / kNano);
  }
  std::string path() const {
    std::string text;
    for (const std::uint32_t span : result_.critical) text += fmt::format("{} ", spans_[span].name);
    return text;
  }
  Picos idle(Engine engine, StartCause cause) const {
    for (const EngineTime& each : result_.engines) {
      if (each.engine == engine) return each.idle_for(cause) / kNano;
    }
    return -1;
  }
  const TraceData& data() const { return data_; }
  const std::vector<TraceSpan>& spans() const { return spans_; }
  const Analysis& result() const { return result_; }

 private:
  Trace trace_;
  TraceData data_;
  std::vector<TraceSpan> spans_;
  Analysis result_;
};

TEST(SimAnalysis, TheHostIsLateByTheTimeOfItsCalls) {
  const Device device = open_exact({.host = R"("launch": "3 us")"});
  const Stream a = device.stream(), b = device.stream();
  Watched watched;
  run_for(a, "a1", 1000);
  run_for(b, "b1", 2500);  // ends at 8.5 us, in the middle of a2's call
  run_for(a, "a2", 1000);
  device.sync();
  watched.analyse();
  EXPECT_EQ(watched.why("a1"), "host, ready 0");
  EXPECT_EQ(watched.why("b1"), "host, ready 3000");
  EXPECT_EQ(watched.why("a2"), "host, ready 6000");
  EXPECT_EQ(watched.idle(Engine::kCompute, StartCause::kHost), 2000 + 500);
  EXPECT_EQ(watched.path(), "a2 ");
}

TEST(SimAnalysis, TheHostWaited) {
  const Device device = open_exact();
  const Stream a = device.stream(), b = device.stream();
  Watched watched;
  run_for(a, "a", 1000);
  a.sync();
  run_for(b, "b", 100);
  device.sync();
  run_for(a, "c", 100);
  device.sync();
  watched.analyse();
  EXPECT_EQ(watched.why("b"), "host after a, ready 1000");
  EXPECT_EQ(watched.why("c"), "host after b, ready 1100");
  EXPECT_EQ(watched.path(), "a b c ");
}

TEST(SimAnalysis, EventsOrderAndBarriersAreDependencies) {
  const Device device = open_exact();
  const Stream a = device.stream(), b = device.stream();
  const Buffer memory = device.alloc(1000), host = device.alloc(1000, MemoryKind::kPinned);
  Watched watched;
  a.copy(memory, host, "load");
  run_for(a, "first", 500);
  const Event event = a.record();
  run_for(a, "beside", 100, 0.1);
  b.wait(event);
  run_for(b, "waits", 500, 0.1);
  run_for(device.default_stream(), "legacy", 50);
  run_for(a, "behind", 50);
  device.sync();
  watched.analyse();
  EXPECT_EQ(watched.why("first"), "dependency after load, ready 1000");
  EXPECT_EQ(watched.why("waits"), "dependency after first, ready 1500");
  EXPECT_EQ(watched.why("legacy"), "dependency after waits, ready 2000");
  EXPECT_EQ(watched.why("behind"), "dependency after legacy, ready 2050");
  EXPECT_EQ(watched.path(), "load first waits legacy behind ");
  EXPECT_EQ(watched.result().slack[watched.index("beside")] / kNano, 400);
  EXPECT_EQ(watched.idle(Engine::kCompute, StartCause::kDependency), 1000);
}

TEST(SimAnalysis, EnginesAreBusy) {
  for (const int engines : {1, 2}) {
    const Device device = open_exact({.copies = fmt::format(R"(, "engines": {})", engines)});
    const Stream a = device.stream(), b = device.stream(), c = device.stream(), d = device.stream();
    const Buffer memory = device.alloc(1000), host = device.alloc(1000, MemoryKind::kPinned);
    Watched watched;
    run_for(a, "whole", 1000);
    run_for(b, "half", 100, 0.5);
    run_for(c, "other half", 100, 0.5);
    c.copy(memory.slice(0, 400), host.slice(0, 400), "in");
    a.copy(memory.slice(0, 300), host.slice(0, 300), "in after whole");
    d.copy(host.slice(500, 100), memory.slice(500, 100), "out");
    d.copy(host.slice(500, 100), memory.slice(500, 100), "out again");
    device.sync();
    watched.analyse();
    EXPECT_EQ(watched.why("half"), "engine after whole, ready 0");
    EXPECT_EQ(watched.why("other half"), "engine after whole, ready 0");
    EXPECT_EQ(watched.why("out"), "host, ready 0");
    EXPECT_EQ(watched.why("in after whole"), "dependency after whole, ready 1000");
    EXPECT_EQ(watched.why("in"), "engine after in after whole, ready 1100");
  }
}

TEST(SimAnalysis, ACopyEngineServesOneAtATime) {
  for (const int engines : {1, 2}) {
    const Device device = open_exact({.copies = fmt::format(R"(, "engines": {})", engines)});
    const Stream a = device.stream(), b = device.stream(), c = device.stream();
    const Buffer memory = device.alloc(1000), host = device.alloc(1000, MemoryKind::kPinned);
    Watched watched;
    a.copy(memory.slice(0, 400), host.slice(0, 400), "in");
    b.copy(memory.slice(0, 300), host.slice(0, 300), "second");
    c.copy(host.slice(500, 100), memory.slice(500, 100), "out");
    device.sync();
    watched.analyse();
    EXPECT_EQ(watched.why("second"), "engine after in, ready 0");
    EXPECT_EQ(watched.why("out"), engines == 1 ? "engine after second, ready 0" : "host, ready 0");
    EXPECT_EQ(watched.path(), engines == 1 ? "in second out " : "in second ");
  }
}

TEST(SimAnalysis, AHardwareQueueHoldsBack) {
  const Device device = open_exact({}, with_connections(1));
  const Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  const Stream c = device.stream(StreamFlags::kNonBlocking);
  Watched watched;
  run_for(a, "long", 1000, 0.1);
  b.wait(a.record());
  run_for(b, "waits", 10, 0.1);
  run_for(c, "free", 500, 0.1);
  device.sync();
  watched.analyse();
  EXPECT_EQ(watched.why("waits"), "dependency after long, ready 1000");
  EXPECT_EQ(watched.why("free"), "queue after waits, ready 0");
  EXPECT_EQ(watched.path(), "long free ");
}

// Random programs with everything at once: no start without a reason, and the run can be computed again from them.
TEST(SimAnalysis, EveryStartHasAReason) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) { return random() % limit; };
    const Device device = open_exact({.copies = fmt::format(R"(, "engines": {})", 1 + below(2)),
                                      .host = below(2) ? R"("launch": "3 us", "copy": "2 us")" : R"("record": "0 ps")",
                                      .queues = static_cast<int>(1 + below(4))});
    std::vector<Stream> streams;
    for (int i = 0; i < 5; ++i)
      streams.push_back(device.stream(below(2) ? StreamFlags::kNonBlocking : StreamFlags::kBlocking));
    const Buffer memory = device.alloc(40000), host = device.alloc(40000, MemoryKind::kPinned);
    Watched watched;
    for (int i = 0; i < 150; ++i) {
      const Stream& stream = streams[below(streams.size())];
      const Range there = memory.slice(0, 1 + below(5000)), here = host.slice(0, there.bytes);
      switch (below(8)) {
        case 0: stream.copy(there, here); break;
        case 1: stream.copy(here, there); break;
        case 2: stream.wait(streams[below(streams.size())].record()); break;
        case 3: below(6) ? void() : stream.sync(); break;
        case 4: run_for(device.default_stream(), "legacy", static_cast<Picos>(1 + below(900))); break;
        default:
          run_for(stream, "kernel", static_cast<Picos>(1 + below(9000)), 1.0 / static_cast<double>(1 + below(3)));
      }
    }
    device.sync();
    watched.analyse();
    for (std::size_t i = 0; i < watched.spans().size(); ++i)
      EXPECT_NE(watched.result().starts[i].cause, StartCause::kUnknown) << "span " << i;
    for (const std::uint32_t span : watched.result().critical) EXPECT_EQ(watched.result().slack[span], 0) << span;
    const watch::RunModel run(watched.data(), watched.spans());
    EXPECT_EQ(watch::replayed_length(run), figures(watched.spans()).total);
    for (std::size_t i = 0; i < run.spans.size(); ++i)
      EXPECT_LE(run.spans[i].started, run.facts[i].reason) << "a start comes in the very instant of its reason";
  }
}

}  // namespace
}  // namespace slip::test::test_analysis
