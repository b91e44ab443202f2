// The race checker: what it must find, and what it must not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "base/sync.hpp"
#include "slip/slip.hpp"
#include "support/devices.hpp"
#include "support/kernels.hpp"
#include "watch/support.hpp"

namespace slip::test::test_race {
namespace {

constexpr std::size_t kBytes = 4096;

// On every device: whether ops race does not depend on the device. The checker uses what ops declare, so these ops
// declare accesses and touch nothing: a real race would also be reported by the sanitizers.
class Races : public DeviceTest {
 protected:
  void SetUp() override {
    device.emplace(open());
    a.emplace(device->stream(StreamFlags::kNonBlocking));
    b.emplace(device->stream(StreamFlags::kNonBlocking));
    x.emplace(device->alloc(kBytes, MemoryKind::kDevice, "x"));
    pinned.emplace(device->alloc(kBytes, MemoryKind::kPinned, "pinned"));
    device->sync();
    checker.emplace();
  }
  // Waits for all work and returns the report.
  RaceReport races() {
    device->sync();
    checker->stop();
    return checker->report();
  }
  void write(StreamRef stream, std::size_t from = 0, std::size_t bytes = kBytes) {
    stream.launch(idle_kernel(), {.writes = {x->slice(from, bytes)}, .name = "writer"});
  }
  void read(StreamRef stream, std::size_t from = 0, std::size_t bytes = kBytes) {
    stream.launch(idle_kernel(),
                  {.reads = {x->slice(from, bytes)}, .writes = {pinned->slice(from, bytes)}, .name = "reader"});
  }

  std::optional<Device> device;
  std::optional<Stream> a, b;
  std::optional<Buffer> x, pinned;
  std::optional<RaceChecker> checker;
};

TEST_P(Races, OneStreamIsOrdered) {
  write(*a), read(*a), write(*a);
  EXPECT_TRUE(races().races.empty()) << races().text();
}

TEST_P(Races, TwoStreamsWithoutAnEdge) {
  write(*a), read(*b);
  const RaceReport report = races();
  ASSERT_EQ(report.races.size(), 1U) << report.text();
  const Race& race = report.races.front();
  EXPECT_EQ(race.first.name, "writer");
  EXPECT_TRUE(race.first.writes);
  EXPECT_EQ(race.second.name, "reader");
  EXPECT_FALSE(race.second.writes);
  EXPECT_EQ(race.buffer_name, "x");
  EXPECT_EQ(race.offset, 0U);
  EXPECT_EQ(race.bytes, kBytes);
  EXPECT_EQ(race.first.stream, a->id());
  EXPECT_EQ(race.second.stream, b->id());
  EXPECT_NE(race.first.file.find("test_race.cpp"), std::string_view::npos);
  EXPECT_NE(report.text().find("record an event in stream"), std::string::npos);
}

TEST_P(Races, AnEventOrders) {
  write(*a);
  b->wait(a->record());
  read(*b);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, AnEventRecordedBeforeTheWriteOrdersNothing) {
  const Event early = a->record();
  write(*a);
  b->wait(early);
  read(*b);
  EXPECT_EQ(races().races.size(), 1U);
}

TEST_P(Races, AWaitTakesTheRecordAtItsCall) {
  Event event;
  write(*a);
  a->record(event);
  b->wait(event);
  write(*a);  // after the record: not covered, although the event is recorded again
  a->record(event);
  read(*b);
  EXPECT_EQ(races().races.size(), 1U);
}

TEST_P(Races, EdgesGoThroughOtherStreams) {
  const Stream middle = device->stream(StreamFlags::kNonBlocking);
  write(*a);
  middle.wait(a->record());
  b->wait(middle.record());
  read(*b);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, ReadersDoNotRaceButTheNextWriterMustWaitForAll) {
  read(*a);
  read(*b, 0, 64);
  const Stream writer = device->stream(StreamFlags::kNonBlocking);
  writer.wait(a->record());
  write(writer);
  const RaceReport report = races();
  // The two copies also write the same pinned bytes.
  EXPECT_EQ(report.races.size(), 2U) << report.text();
}

TEST_P(Races, OnlySharedBytesCount) {
  write(*a, 0, 1024), write(*b, 1024, 1024);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, OverlappingViewsAtDifferentOffsets) {
  write(*a, 0, 1024), write(*b, 1000, 1024);
  const RaceReport report = races();
  ASSERT_EQ(report.races.size(), 1U);
  EXPECT_EQ(report.races[0].offset, 1000U);
  EXPECT_EQ(report.races[0].bytes, 24U);
}

TEST_P(Races, SyncAndSuccessfulQueryOrderTheHost) {
  write(*a);
  a->sync();
  read(*b);
  while (!b->query()) {}
  write(*a);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, SyncOfAnotherStreamOrdersNothing) {
  write(*a);
  b->sync();
  read(*b);
  EXPECT_EQ(races().races.size(), 1U);
}

TEST_P(Races, TheLegacyBarrierOrdersBlockingStreams) {
  const Stream one = device->stream(), two = device->stream();
  write(one);
  device->legacy_stream().launch(idle_kernel(), {.writes = {pinned->slice(0, 4)}});
  read(two, 64, 64);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, TheLegacyBarrierDoesNotReachNonBlockingStreams) {
  write(*a);
  device->legacy_stream().launch(idle_kernel(), {.writes = {pinned->slice(0, 4)}});
  read(*b, 64, 64);
  EXPECT_EQ(races().races.size(), 1U);
}

// The stream is closed after its work is done; another stream may have its slot by then.
TEST_P(Races, TheLegacyStreamComesAfterStreamsThatAreClosed) {
  device->legacy_stream().launch(idle_kernel(), {.writes = {pinned->slice(0, 4)}});
  for (int turn = 0; turn < 20; ++turn) {
    const runtime::StreamState* place = nullptr;
    {
      const Stream one = device->stream();
      one.wait(a->record());
      write(one);
      place = one.state();
    }
    std::optional<Stream> two(device->stream());
    for (int tries = 0; turn % 2 == 0 && tries < 200 && two->state() != place; ++tries) {
      base::yield_thread();
      two.reset();
      two.emplace(device->stream());
    }
    a->wait(device->legacy_stream().record());
    read(*a, 64, 64);
  }
  const RaceReport report = races();
  EXPECT_TRUE(report.races.empty()) << report.text();
}

TEST_P(Races, AHostAccessAfterACopyNeedsASync) {
  read(*a);
  static_cast<void>(pinned->host_read<std::uint32_t>().size());
  const RaceReport report = races();
  ASSERT_EQ(report.races.size(), 1U) << report.text();
  EXPECT_EQ(report.races[0].second.stream, 0U);
}

TEST_P(Races, AHostAccessAfterTheSyncIsFine) {
  read(*a);
  a->record().sync();
  static_cast<void>(pinned->host_write<std::uint32_t>().size());
  a->copy(*x, *pinned);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, AViewThatLivesOnMeetsWhatIsIssuedMeanwhile) {
  {
    const auto view = pinned->host_write<std::uint32_t>();
    a->launch(idle_kernel(), {.reads = {*pinned}, .writes = {*x}});
  }
  EXPECT_EQ(races().races.size(), 1U);
}

TEST_P(Races, UseAfterAStreamOrderedFreeIsARace) {
  Buffer memory = a->alloc(kBytes, "short-lived");
  b->wait(a->record());
  b->launch(idle_kernel(), {.writes = {memory}});
  a->free(std::move(memory));  // b may still use it
  const RaceReport report = races();
  ASSERT_EQ(report.races.size(), 1U) << report.text();
  EXPECT_EQ(report.races[0].buffer_name, "short-lived");
  EXPECT_EQ(report.races[0].second.name, "stream-ordered free");
}

TEST_P(Races, UseBeforeTheAllocationIsReachedIsARace) {
  const Buffer memory = a->alloc(kBytes, "early");
  b->launch(idle_kernel(), {.writes = {memory}});
  a->wait(b->record());
  EXPECT_EQ(races().races.size(), 1U);
}

TEST_P(Races, ALaunchedPlanIsCheckedOpByOp) {
  a->begin_capture();
  write(*a);
  b->wait(a->record());
  read(*b);
  a->wait(b->record());
  Plan plan = a->end_capture();
  a->launch(plan);
  a->launch(plan);
  EXPECT_TRUE(races().races.empty());
}

TEST_P(Races, AHostFunctionMayDeclareItsAccesses) {
  a->host([] {}, {.writes = {*pinned}, .name = "fill"});
  b->host([] {}, {.reads = {*pinned}, .name = "look"});
  b->host([] {}, "silent");
  const RaceReport report = races();
  ASSERT_EQ(report.races.size(), 1U) << report.text();
  EXPECT_EQ(report.races[0].first.name, "fill");
  EXPECT_EQ(report.races[0].second.name, "look");
  EXPECT_EQ(report.opaque, 1U);
}

TEST_P(Races, TheSamePlaceIsReportedOnce) {
  for (int i = 0; i < 10; ++i) write(*a), read(*b);
  const RaceReport report = races();
  EXPECT_EQ(report.races.size(), 2U) << report.text();  // read after write, write after read
  EXPECT_GE(report.races[0].times + report.races[1].times, 19U);
}

TEST_P(Races, ATraceIsCheckedTheSame) {
  Trace trace;
  write(*a), read(*b);
  const RaceReport live = races();
  trace.stop();
  const RaceReport offline = check_races(trace.data());
  ASSERT_EQ(offline.races.size(), live.races.size());
  EXPECT_EQ(offline.races[0].first.name, live.races[0].first.name);
  EXPECT_EQ(offline.races[0].buffer_name, "x");
  EXPECT_EQ(offline.races[0].bytes, live.races[0].bytes);
}

// A stream without a name is named by its id alone. One stream is older than the checker and the trace, the other one
// is closed before they report.
TEST_P(Races, ReportsAndFixesNameStreamsByTheirIdsAndNames) {
  const watch_test::Folder folder;
  const Stream loads = device->stream({.name = "loads", .flags = StreamFlags::kNonBlocking});
  for (const char* name : {"compute", ""}) {
    RaceChecker live;
    Trace trace;
    std::string reader = name;
    {
      const Stream stream = device->stream({.name = name, .flags = StreamFlags::kNonBlocking});
      reader = fmt::format("stream {}{}", stream.id(), reader.empty() ? reader : fmt::format(" '{}'", reader));
      write(loads), read(stream);
      device->sync();
    }
    live.stop(), trace.stop();
    const std::string text = live.report().text(), writer = fmt::format("stream {} 'loads'", loads.id());
    for (const std::string& part :
         {"  'writer' writes them in " + writer + " (", "  'reader' reads them in " + reader + " (",
          "record an event in " + writer + " after 'writer' (",
          ", and make " + reader + " wait for it before 'reader' ("})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    trace.write(folder.file("run.json"));
    const TraceData data = read_trace(folder.file("run.json"));  // the reports refer to it
    EXPECT_EQ(check_races(data).text(), text);
    EXPECT_EQ(check_trace(data).races.text(), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Races, testing::ValuesIn(device_cases()), label_of);

}  // namespace
}  // namespace slip::test::test_race
