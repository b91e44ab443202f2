// Ops that the library runs for itself do not appear in the program's trace.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/observers.hpp"
#include "slip/slip.hpp"
#include "watch/trace/record_log.hpp"

namespace slip::test_private {
namespace {

const Kernel kTouch{"touch", [](const Args&) {}};

class Kept final : public Observer {
 public:
  void on(const Record& record) override { log.add(record); }
  watch::RecordLog log{1 << 20};
};

void work(const Device& device, const char* name) {
  const Stream stream = device.stream(name, StreamFlags::kNonBlocking);
  const Buffer buffer = device.alloc(64, MemoryKind::kPinned, name);
  stream.launch(kTouch, {.writes = {buffer}, .name = name});
  stream.sync();
  static_cast<void>(buffer.host_read<std::byte>());
}

class Private : public testing::TestWithParam<const char*> {};

TEST_P(Private, PrivateWorkIsNotReported) {
  const Device device = Device::open(GetParam());
  Trace trace;
  {
    const runtime::PrivateScope scope;
    work(device, "measured");
    work(Device::open(GetParam()), "measured");
  }
  work(device, "program");
  trace.stop();
  const TraceData data = trace.data();
  EXPECT_FALSE(data.records.empty());
  for (const TraceRecord& record : data.records) EXPECT_NE(record.name, "measured");
  ASSERT_EQ(data.spans().size(), 1U);
  EXPECT_NE(data.spans()[0].run, nullptr);
  for (const TraceBuffer& buffer : data.buffers) EXPECT_EQ(buffer.name, "program");
}

TEST_P(Private, OnlyTheGivenObserverIsNotified) {
  Trace trace;
  Kept kept;
  {
    const runtime::PrivateScope scope(&kept);
    work(Device::open(GetParam()), "predicted");
  }
  work(Device::open(GetParam()), "program");
  trace.stop();
  ASSERT_EQ(kept.log.collect().spans().size(), 1U);
  EXPECT_EQ(kept.log.collect().spans()[0].name, "predicted");
  ASSERT_EQ(trace.data().spans().size(), 1U);
  EXPECT_EQ(trace.data().spans()[0].name, "program");
}

INSTANTIATE_TEST_SUITE_P(On, Private, testing::Values("cpu", "sim:h200"),
                         [](const auto& device) { return std::string(device.param).substr(0, 3); });

// An observer that comes later knows the names of open streams.
TEST(NamedStreams, AreReportedToObserversAttachedLater) {
  const Device device = Device::open("cpu");
  const Stream loads = device.stream("loads", StreamFlags::kNonBlocking);
  { const Stream closed = device.stream("closed", StreamFlags::kNonBlocking); }
  Trace trace;
  loads.launch(kTouch, {});
  loads.sync();
  trace.stop();
  std::vector<std::string> names;
  for (const TraceStream& stream : trace.data().streams()) {
    if (stream.device == device.id()) names.emplace_back(stream.name);
  }
  EXPECT_NE(std::ranges::find(names, "loads"), names.end());
  EXPECT_EQ(std::ranges::find(names, "closed"), names.end());
}

// Planning weights runs thousands of ops to measure, verify and simulate. None of them may appear in the trace.
TEST(PrivateWork, OfPlanningWeights) {
  Graph graph;
  const Value x = graph.input("x", DataType::kF32, {4, 64});
  Value y = x;
  for (int i = 0; i < 3; ++i) {
    const Value w = graph.weight("w" + std::to_string(i), DataType::kF32, {64, 64});
    y = graph.linear("mul" + std::to_string(i), y, w);
  }
  graph.output(y);
  Trace trace;
  const Device device = Device::open("cpu");
  Costs costs = measure_costs(graph, device, LoadProbe{.piece_bytes = 1 << 14});
  costs.kernel_slowdown = costs.load_slowdown = 0;  // beside other work they can be anything
  for (CostSample& sample : costs.samples) sample.beside = sample.time;
  const WeightsPlan plan = plan_weights(graph, costs, {.stream_all = true});
  EXPECT_TRUE(verify_weights(plan, graph).proven());
  const Prediction prediction = predict_weights(plan, graph, costs);
  trace.stop();
  EXPECT_EQ(trace.data().spans().size(), 0U);
  EXPECT_GE(prediction.trace.spans().size(), 12U) << "the prediction has its own trace";
}

}  // namespace
}  // namespace slip::test_private
