// check_trace(trace): superfluous waits, false dependencies, deadlocks.
#include <gtest/gtest.h>

#include "slip/slip.hpp"
#include "support/devices.hpp"
#include "support/kernels.hpp"

namespace slip::test::test_check {
namespace {

constexpr std::size_t kBytes = 1 << 20;  // a copy of it takes 1 ms on the ideal device, near enough
constexpr Picos kMs = 1'000'000'000;
constexpr Cost kOneMs{.time = kMs};

class Check : public testing::Test {
 protected:
  void open(const DeviceOptions& options = {}) {
    device.emplace(open_ideal(options));
    a.emplace(device->stream(StreamFlags::kNonBlocking));
    b.emplace(device->stream(StreamFlags::kNonBlocking));
    x.emplace(device->alloc(kBytes, MemoryKind::kDevice, "x"));
    y.emplace(device->alloc(kBytes, MemoryKind::kDevice, "y"));
    pinned.emplace(device->alloc(kBytes, MemoryKind::kPinned, "pinned"));
    device->sync();
    trace.emplace();
  }
  void work(StreamRef stream, Name name, std::vector<Range> reads, std::vector<Range> writes) {
    stream.launch(idle_kernel(), {.reads = reads, .writes = writes, .name = name}, kOneMs);
  }
  const CheckReport& checked() {
    device->sync();
    trace->stop();
    data = trace->data();
    report = check_trace(data);
    EXPECT_TRUE(report.clean()) << report.text();
    return report;
  }

  std::optional<Device> device;
  std::optional<Stream> a, b;
  std::optional<Buffer> x, y, pinned;
  std::optional<Trace> trace;
  TraceData data;  // the report refers to it
  CheckReport report;
};

TEST_F(Check, ANeededWaitIsNotReported) {
  open();
  a->copy(*x, *pinned);
  b->wait(a->record());
  work(*b, "reader", {*x}, {});
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
  EXPECT_EQ(report.text(), "no race in 2 ops\n");
}

// The copy and the kernel could run side by side: the wait costs what the shorter one takes.
TEST_F(Check, AWaitThatProtectsNothingIsReportedWithItsCost) {
  open();
  work(*a, "writer", {}, {*x});
  b->wait(a->record());
  b->copy(*y, *pinned, "upload");
  const int line = __LINE__ - 2;
  const CheckReport& found = checked();
  ASSERT_EQ(found.superfluous.size(), 1U) << found.text();
  const SuperfluousWait& wait = found.superfluous[0];
  EXPECT_EQ(wait.line, line);
  EXPECT_NE(wait.file.find("test_check.cpp"), std::string_view::npos);
  EXPECT_EQ(wait.after.name, "writer");
  EXPECT_EQ(wait.before.name, "upload");
  EXPECT_FALSE(wait.implied);
  EXPECT_EQ(wait.cost, kMs) << found.text();
}

TEST_F(Check, AWaitThatRepeatsAnotherIsImplied) {
  open();
  a->copy(*x, *pinned);
  const Event loaded = a->record();
  b->wait(loaded);
  work(*b, "first", {*x}, {});
  b->wait(loaded);
  const int line = __LINE__ - 1;
  work(*b, "second", {*x}, {});
  ASSERT_EQ(checked().superfluous.size(), 1U) << report.text();
  EXPECT_EQ(report.superfluous[0].line, line);
  EXPECT_TRUE(report.superfluous[0].implied);
  EXPECT_EQ(report.superfluous[0].cost, 0);
}

// In the first iterations of a loop a wait may protect nothing. The source line is needed nevertheless.
TEST_F(Check, ALineThatIsNeededOnceIsKept) {
  open();
  for (int k = 0; k < 4; ++k) {
    const Range slot = k % 2 ? Range(*x) : Range(*y);
    const Event used = b->record();  // of all readers so far
    a->wait(used);
    a->copy(slot, *pinned, "load");
    b->wait(a->record());
    work(*b, "layer", {slot}, {});
  }
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
}

TEST_F(Check, WhatTheHostReadsAfterASyncIsProtected) {
  open();
  work(*a, "writer", {}, {*x});
  a->copy(*pinned, *x, "download");
  b->wait(a->record());
  work(*b, "after", {}, {*y});
  b->sync();  // the trace does not show what the host does with the pinned memory now
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
}

TEST_F(Check, WaitsAroundOpaqueOpsAreKept) {
  open();
  work(*a, "writer", {}, {*x});
  b->wait(a->record());
  b->host([] {});
  a->wait(b->record());
  work(*a, "after", {}, {*y});
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
  EXPECT_EQ(report.races.opaque, 1U);
}

TEST_F(Check, EdgesOfALaunchAreNotTheProgramsWaits) {
  open();
  a->begin_capture();
  b->wait(a->record());
  work(*a, "left", {}, {*x});
  work(*b, "right", {}, {*y});
  a->wait(b->record());
  Plan plan = a->end_capture();
  a->launch(plan);
  a->launch(plan);
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
  EXPECT_TRUE(report.false_dependencies.empty()) << report.text();
}

TEST_F(Check, ALegacyOpThatNobodyNeedsIsAFalseDependency) {
  open();
  const Stream one = device->stream(), two = device->stream();
  one.copy(*x, *pinned, "upload");
  work(device->legacy_stream(), "intruder", {}, {*y});
  two.copy(*pinned, *x, "download");
  static_cast<void>(checked());
  EXPECT_TRUE(report.false_dependencies.empty()) << "the download needs it\n" << report.text();

  open();
  const Stream three = device->stream(), four = device->stream();
  three.copy(x->slice(0, kBytes / 2), pinned->slice(0, kBytes / 2), "upload");
  work(device->legacy_stream(), "intruder", {}, {*y});
  four.copy(pinned->slice(kBytes / 2, kBytes / 2), x->slice(kBytes / 2, kBytes / 2), "download");
  ASSERT_EQ(checked().false_dependencies.size(), 1U) << report.text();
  const FalseDependency& found = report.false_dependencies[0];
  EXPECT_FALSE(found.queue);
  EXPECT_EQ(found.held.name, "download");
  EXPECT_EQ(found.by.name, "intruder");
  EXPECT_GT(found.cost, kMs / 2) << report.text();
}

// Rule 9: blocking streams come after the wait, and the wait after them.
TEST_F(Check, AWaitOfTheLegacyStreamIsABarrierItself) {
  open();
  const Stream one = device->stream(), two = device->stream();
  work(*a, "other", {}, {*y});
  work(one, "writer", {}, {*x});
  device->legacy_stream().wait(a->record());
  work(two, "reader", {*x}, {});
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
}

// The wait makes `one` come after the legacy work, so that the sync covers the download. A name does not make a stream
// the legacy stream.
TEST_F(Check, AStreamWithTheNameLegacyIsAnOrdinaryStream) {
  for (const Name name : {Name("other"), Name("legacy")}) {
    open();
    const Stream one = device->stream({.name = name});
    device->legacy_stream().copy(*pinned, *x, "download");
    work(*a, "other", {}, {*y});
    one.wait(a->record());
    one.sync();
    EXPECT_TRUE(checked().superfluous.empty()) << report.text();
  }
}

TEST_F(Check, AWaitOfTheLegacyStreamThatOrdersNothingIsReported) {
  open();
  work(*a, "other", {}, {*y});
  device->legacy_stream().wait(a->record());
  work(device->legacy_stream(), "writer", {}, {*x});
  EXPECT_EQ(checked().superfluous.size(), 1U) << report.text();
}

TEST_F(Check, AWaitThatOrdersAnAllocationIsNeeded) {
  open();
  work(*a, "other", {}, {*y});
  const Buffer memory = a->alloc(kBytes, "data");
  b->wait(a->record());
  work(*b, "user", {}, {memory});
  a->wait(b->record());
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
}

TEST_F(Check, TheBarrierOfALegacyPeerCopyIsNotTheProgramsWait) {
  open();
  const std::vector<Device> two = open_ideal(2);
  const Buffer from = two[0].alloc(kBytes, MemoryKind::kDevice, "from"),
               to = two[1].alloc(kBytes, MemoryKind::kDevice, "to");
  const Buffer one = two[1].alloc(kBytes, MemoryKind::kDevice, "one"),
               other = two[1].alloc(kBytes, MemoryKind::kDevice, "other");
  work(two[1].legacy_stream(), "before", {}, {one});
  two[0].legacy_stream().copy(to, from);
  work(two[1].legacy_stream(), "after", {}, {other});
  for (const Device& each : two) each.sync();
  EXPECT_TRUE(checked().superfluous.empty()) << report.text();
}

TEST_F(Check, TwoWaitsOnOneLineAreDistinguished) {
  open();
  const Stream c = device->stream(StreamFlags::kNonBlocking);
  work(*a, "needed", {}, {*x});
  work(c, "not needed", {}, {*y});
  const Event one = a->record(), two = c.record();
  b->wait(one), b->wait(two);
  work(*b, "reader", {*x}, {});
  ASSERT_EQ(checked().superfluous.size(), 1U) << report.text();
  EXPECT_EQ(report.superfluous[0].after.name, "not needed");
}

TEST_F(Check, OpsThatShareAQueueAreAFalseDependency) {
  open({.max_connections = 1});
  constexpr Cost kNarrow{.width = 0.1, .time = kMs};  // there is room for the others
  a->launch(idle_kernel(), {.writes = {*x}, .name = "long"}, kNarrow);
  a->launch(idle_kernel(), {.reads = {*x}, .name = "next"}, kNarrow);  // at the head of the queue until it may start
  b->launch(idle_kernel(), {.writes = {*y}, .name = "other"}, kNarrow);
  ASSERT_EQ(checked().false_dependencies.size(), 1U) << report.text();
  EXPECT_TRUE(report.false_dependencies[0].queue);
  EXPECT_EQ(report.false_dependencies[0].held.name, "other");
  EXPECT_EQ(report.false_dependencies[0].by.name, "next");
  EXPECT_EQ(report.false_dependencies[0].cost, kMs);
}

TEST_F(Check, ACycleOfWaitsIsReported) {
  open();
  Buffer flag = device->alloc(4, MemoryKind::kPinned, "flag");
  poke_words(flag, 0);
  a->wait_value(flag, 1, "wait");
  work(*a, "behind", {}, {*x});
  b->wait(a->record());
  b->write_value(flag, 1, "write");
  EXPECT_FALSE(a->sync_for(std::chrono::milliseconds(1)));
  trace->stop();
  data = trace->data();
  report = check_trace(data);
  EXPECT_FALSE(report.clean());
  ASSERT_EQ(report.deadlocks.size(), 1U) << report.text();
  const std::vector<Deadlock::Step>& cycle = report.deadlocks[0].cycle;
  ASSERT_EQ(cycle.size(), 3U) << report.text();
  EXPECT_EQ(cycle[0].op.name, "wait");
  EXPECT_EQ(cycle[1].op.name, "write");
  EXPECT_EQ(cycle[2].op.name, "behind");
  EXPECT_NE(report.text().find("deadlock: 3 ops wait for each other"), std::string::npos);
  poke_words(flag, 1);  // ends both waits
}

}  // namespace
}  // namespace slip::test::test_check
