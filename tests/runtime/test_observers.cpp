// Observers: that they see everything once, in order, and may come and go under load.
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "slip/observer.hpp"

namespace slip::test_observers {
namespace {

using Key = std::pair<std::uint64_t, std::uint64_t>;  // stream, position

struct Copied {
  Record record;
  std::vector<Range> reads, writes;
};

class Log : public Observer {
 public:
  void on(const Record& record) override {
    Copied copied{record, {}, {}};
    if (record.op) {
      copied.reads.assign(record.op->reads.begin(), record.op->reads.end());
      copied.writes.assign(record.op->writes.begin(), record.op->writes.end());
    }
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(copied));
  }
  std::vector<Copied> of(RecordKind kind) {
    const std::lock_guard lock(mutex_);
    std::vector<Copied> result;
    for (const Copied& copied : all_) {
      if (copied.record.kind == kind) result.push_back(copied);
    }
    return result;
  }

 private:
  std::mutex mutex_;
  std::vector<Copied> all_;
};

struct Attached {
  explicit Attached(Observer& which) : observer(which) { attach_observer(observer); }
  ~Attached() { detach_observer(observer); }
  Observer& observer;
};

void expect_complete(Log& log, std::size_t engine_ops) {
  std::map<Key, int> runs;
  for (const Copied& run : log.of(RecordKind::kRun)) {
    ++runs[{run.record.stream, run.record.position}];
    EXPECT_LE(run.record.started, run.record.ended);
  }
  std::size_t submitted = 0;
  std::map<std::uint64_t, std::uint64_t> last;
  for (const Copied& submit : log.of(RecordKind::kSubmit)) {
    const Record& record = submit.record;
    EXPECT_GT(record.position, last[record.stream]) << "records of a stream come in its order";
    last[record.stream] = record.position;
    if (record.engine == Engine::kNone) continue;
    ++submitted;
    EXPECT_EQ((runs[{record.stream, record.position}]), 1) << "stream " << record.stream << " at " << record.position;
  }
  EXPECT_EQ(submitted, engine_ops);
}

TEST(Observers, EverySubmittedOpRunsOnce) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    Log log;
    const Device device = Device::open("cpu", {.policy = policy, .queue_depth = 64});
    Buffer memory = device.alloc(256);
    Buffer pinned = device.alloc(256, MemoryKind::kPinned);
    const Attached attached(log);
    std::size_t ops = 0;
    {
      const Stream a = device.stream();
      const Stream b = device.stream(StreamFlags::kNonBlocking);
      for (int i = 0; i < 100; ++i) {
        const Stream& stream = i % 2 == 0 ? a : b;
        const std::size_t half = i % 2 == 0 ? 0 : 128;  // the streams are not ordered: each has its own
        stream.launch(test::put(), {.writes = {memory.slice(half, 64)}, .scalars = {i}});
        stream.copy(pinned.slice(half, 128), memory.slice(half, 128));
        stream.host([] {});
        stream.fill(memory.slice(half, 128), 1);
        ops += 4;
        if (i % 10 == 0) b.wait(a.record());
        if (i % 17 == 0) device.legacy_stream().launch(test::nothing()), ++ops;
      }
      device.sync();
    }
    expect_complete(log, ops);
  }
}

TEST(Observers, RangesNamesAndPlacesAreThere) {
  Log log;
  const Device device = Device::open("cpu");
  const Buffer memory = device.alloc(256, MemoryKind::kDevice, "memory");
  const Buffer pinned = device.alloc(256, MemoryKind::kPinned);
  const Stream stream = device.stream();
  const Attached attached(log);
  const int line = __LINE__ + 1;
  stream.copy(memory.slice(16, 32), pinned.slice(64, 32), "upload");
  stream.sync();
  const std::vector<Copied> submits = log.of(RecordKind::kSubmit);
  ASSERT_EQ(submits.size(), 1U);
  const Copied& copy = submits[0];
  ASSERT_EQ(copy.reads.size(), 1U);
  ASSERT_EQ(copy.writes.size(), 1U);
  EXPECT_EQ(copy.writes[0].offset, 16U);
  EXPECT_EQ(copy.writes[0].bytes, 32U);
  EXPECT_EQ(copy.writes[0].id, memory.range().id);
  EXPECT_EQ(copy.reads[0].offset, 64U);
  EXPECT_EQ(copy.record.name, Name("upload"));
  EXPECT_EQ(copy.record.here.line, line);
  EXPECT_EQ(copy.record.engine, Engine::kCopyIn);
  EXPECT_EQ(copy.record.stream, stream.id());
  EXPECT_EQ(copy.record.device, device.id());
}

TEST(Observers, ObserversAreNotifiedOfEventsSyncsAndMemory) {
  Log log;
  const Device device = Device::open("cpu");
  const Attached attached(log);
  {
    const Stream a = device.stream();
    const Stream b = device.stream();
    a.launch(test::nothing());
    const Event event = a.record();
    b.wait(event);
    b.sync();
    EXPECT_TRUE(test::eventually([&] { return event.query(); }));
    a.free(a.alloc(512));
    Buffer pinned = device.alloc(64, MemoryKind::kPinned);
    pinned.host_write<int>()[0] = 1;
    device.sync();
    const auto waits = log.of(RecordKind::kEventWait);
    ASSERT_EQ(waits.size(), 1U);
    EXPECT_EQ(waits[0].record.stream, b.id());
    EXPECT_EQ(waits[0].record.other_stream, a.id());
    EXPECT_EQ(waits[0].record.other_position, event.point().position);
  }
  // With the legacy stream, which was there before; so were those of other devices, if any are open.
  const auto opened = log.of(RecordKind::kStreamOpen);
  EXPECT_EQ(std::count_if(opened.begin(), opened.end(),
                          [&](const auto& entry) { return entry.record.device == device.id(); }),
            3);
  EXPECT_EQ(log.of(RecordKind::kStreamClose).size(), 2U);
  EXPECT_GE(log.of(RecordKind::kEventRecord).size(), 1U);
  EXPECT_GE(log.of(RecordKind::kSync).size(), 2U);
  EXPECT_GE(log.of(RecordKind::kQuery).size(), 1U);
  EXPECT_EQ(log.of(RecordKind::kAlloc).size(), 2U);
  EXPECT_EQ(log.of(RecordKind::kFree).size(), 2U);
  EXPECT_EQ(log.of(RecordKind::kHostWrite).size(), 1U);
  EXPECT_EQ(log.of(RecordKind::kHostEnd).size(), 1U);
}

TEST(Observers, ObserversAreNotifiedOfAFailure) {
  Log log;
  test::Bodies bodies;
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  const Attached attached(log);
  bodies.launch(stream, [] { throw std::runtime_error("seen by all"); });
  EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kLaunchFailed);
  const auto errors = log.of(RecordKind::kError);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(test::contains(std::string(errors[0].record.name.text()), "seen by all"));
  EXPECT_EQ(errors[0].record.stream, stream.id());
}

class Mortal : public Observer {
 public:
  ~Mortal() override { alive_.store(false); }
  void on(const Record&) override {
    if (!alive_.load()) dead_calls.fetch_add(1);
    calls.fetch_add(1);
  }
  static inline std::atomic<std::uint64_t> calls{0};
  static inline std::atomic<int> dead_calls{0};

 private:
  std::atomic<bool> alive_{true};
};

// After detach_observer() the observer may be destroyed: no thread is inside a call of it, and none will call it.
TEST(Observers, ComeAndGoUnderLoad) {
  const Device device = Device::open("cpu", {.queue_depth = 256});
  std::atomic<bool> stop{false};
  std::vector<std::thread> load;
  for (int t = 0; t < 2; ++t) {
    load.emplace_back([&] {
      const Stream stream = device.stream();
      while (!stop.load()) {
        for (int i = 0; i < 50; ++i) stream.launch(test::nothing());
        stream.sync();
      }
    });
  }
  Log always;
  attach_observer(always);  // so that records are reported while the others detach
  for (int i = 0; i < test::rounds(300); ++i) {
    Mortal mortal;
    const Attached attached(mortal);
    const std::uint64_t before = Mortal::calls.load();
    EXPECT_TRUE(test::eventually([&] { return Mortal::calls.load() > before; }));
  }
  stop.store(true);
  for (std::thread& thread : load) thread.join();
  detach_observer(always);
  EXPECT_EQ(Mortal::dead_calls.load(), 0);
}

// Whether a barrier was reported before the legacy command that it comes after.
class EarlyBarriers : public Observer {
 public:
  explicit EarlyBarriers(std::uint64_t legacy) : legacy_(legacy) {}
  void on(const Record& record) override {
    const bool command = record.kind == RecordKind::kSubmit || record.kind == RecordKind::kEventWait;
    const std::lock_guard lock(mutex_);
    if (command && record.stream == legacy_) last_reported_ = std::max(last_reported_, record.position);
    if (record.kind != RecordKind::kBarrier || record.other_stream != legacy_) return;
    ++barriers;
    early += record.other_position > last_reported_ ? 1 : 0;
  }
  int barriers = 0, early = 0;

 private:
  const std::uint64_t legacy_;
  std::mutex mutex_;
  std::uint64_t last_reported_ = 0;
};

// If a barrier were reported first, the checker would miss what the legacy command comes after.
TEST(Observers, ALegacyCommandIsReportedBeforeTheBarriersItMakes) {
  for (const char* name : {"cpu", "sim:h200"}) {
    SCOPED_TRACE(name);
    const Device device = Device::open(name);
    const Stream blocking = device.stream(), other = device.stream(StreamFlags::kNonBlocking);
    other.host([] {});
    const Event event = other.record();
    EarlyBarriers order(device.legacy_stream().id());
    {
      const Attached attached(order);
      const int rounds = test::rounds(300);
      std::thread waits([&] {
        for (int i = 0; i < rounds; ++i) device.legacy_stream().wait(event);
      });
      for (int i = 0; i < rounds; ++i) blocking.host([] {});
      waits.join();
      blocking.host([] {});
      device.sync();
    }
    EXPECT_GT(order.barriers, 0);
    EXPECT_EQ(order.early, 0);
  }
}

TEST(Observers, ThereIsALimit) {
  std::vector<Log> logs(9);
  for (int i = 0; i < 8; ++i) attach_observer(logs[static_cast<std::size_t>(i)]);
  EXPECT_EQ(test::code_of([&] { attach_observer(logs[8]); }), ErrorCode::kInvalidValue);
  for (int i = 0; i < 8; ++i) detach_observer(logs[static_cast<std::size_t>(i)]);
  detach_observer(logs[8]);  // never attached: nothing happens
  attach_observer(logs[8]);
  detach_observer(logs[8]);
}

}  // namespace
}  // namespace slip::test_observers
