// Process exit and fork with work pending.
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/child.hpp"
#include "slip/observer.hpp"
#include "slip/plan.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_exit {
namespace {

using test::Bodies;
using test::Gate;

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

constexpr CpuPolicy kAll[] = {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom};

// Children start threads; a sanitizer that forbids that leaves nothing to test here.
struct Exit : testing::Test {
  void SetUp() override {
    if (!test::kThreadsAfterFork) GTEST_SKIP() << "this sanitizer allows no threads in a child";
  }
};
using Fork = Exit;

// Leaves through exit(), as a program does. The leak checker has nothing to say about a process that drops its work.
[[noreturn]] void leave(int code) {
#if defined(__SANITIZE_ADDRESS__)
  _exit(code);
#else
  std::exit(code);
#endif
}

TEST_F(Exit, PendingWorkIsDroppedAndTheCodeKept) {
  for (const CpuPolicy policy : kAll) {
    EXPECT_EQ(41, test::child_exit([&]() -> int {
                auto* device = new Device(Device::open("cpu", {.policy = policy}));
                auto* gate = new Gate(*device);
                auto* stream = new Stream(device->stream());
                gate->hold(*stream);
                for (int i = 0; i < 100; ++i) stream->launch(test::nothing());
                leave(41);
              }))
        << "policy " << int(policy);
  }
}

TEST_F(Exit, InTheMiddleOfRunningWork) {
  EXPECT_EQ(42, test::child_exit([]() -> int {
              auto* device = new Device(Device::open("cpu"));
              auto* streams = new std::vector<Stream>;
              for (int i = 0; i < 4; ++i) streams->push_back(device->stream());
              std::thread([streams] {
                for (;;) {
                  for (Stream& stream : *streams) stream.launch(test::nothing());
                }
              }).detach();
              for (int i = 0; i < 1'000; ++i) (*streams)[0].launch(test::nothing());
              leave(42);
            }));
}

// A static device is destroyed during exit; by then its pending work must be dropped, or it would be waited for.
struct Global {
  Device device = Device::open("cpu");
  Stream stream = device.stream();
  Buffer word = device.alloc(4, MemoryKind::kPinned);
};

TEST_F(Exit, AStaticDeviceWithAGatedStreamEnds) {
  EXPECT_EQ(43, test::child_exit([]() -> int {
              static Global global;
              *static_cast<std::uint32_t*>(global.word.native()) = 0;
              global.stream.wait_value(global.word, 1);
              global.stream.launch(test::nothing());
              leave(43);
            }));
}

TEST_F(Exit, AStaticDeviceOpenedAfterAnotherWasUsedEnds) {
  EXPECT_EQ(44, test::child_exit([]() -> int {
              static Device first = Device::open("cpu");
              first.stream().launch(test::nothing());
              static Device second = Device::open("cpu");
              static Buffer word = second.alloc(4, MemoryKind::kPinned);
              *static_cast<std::uint32_t*>(word.native()) = 0;
              second.legacy_stream().wait_value(word, 1);
              leave(44);
            }));
}

TEST_F(Exit, AStaticDeviceWithFinishedWorkEnds) {
  for (const CpuPolicy policy : kAll) {
    EXPECT_EQ(45, test::child_exit([&]() -> int {
                static Device device = Device::open("cpu", {.policy = policy});
                static Stream stream = device.stream();
                stream.launch(test::nothing());
                stream.sync();
                leave(45);
              }));
  }
}

TEST_F(Exit, ThePerThreadStreamOfTheMainThread) {
  EXPECT_EQ(46, test::child_exit([]() -> int {
              static Device device = Device::open("cpu");
              device.per_thread_stream().launch(test::nothing());
              leave(46);
            }));
}

TEST_F(Fork, TheChildGetsAnErrorAndTheParentGoesOn) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream stream = device.stream();
    Buffer memory = device.alloc(64);
    const Event before = stream.record();
    gate.hold(stream);
    bodies.launch(stream, [&] { ran.fetch_add(1); });
    const Event event = stream.record();
    EXPECT_EQ(0, test::child_exit([&] {
                const auto refused = [](const auto& call) { return test::code_of(call) == ErrorCode::kInvalidDevice; };
                if (!refused([&] { stream.launch(test::nothing()); })) return 1;
                if (!refused([&] { stream.sync(); })) return 2;
                if (!refused([&] { stream.query(); })) return 3;
                if (!refused([&] { device.sync(); })) return 4;
                if (!refused([&] { static_cast<void>(device.stream()); })) return 5;
                if (!refused([&] { static_cast<void>(device.alloc(64)); })) return 6;
                if (!refused([&] { device.fill(memory, 1); })) return 7;
                if (!refused([&] { static_cast<void>(event.query()); })) return 8;
                if (!refused([&] { device.legacy_stream().launch(test::nothing()); })) return 9;
                if (!refused([&] { device.per_thread_stream().launch(test::nothing()); })) return 10;
                if (!refused([&] { static_cast<void>(stream.alloc(64)); })) return 11;
                return 0;
              }))
        << "policy " << int(policy);
    gate.open();
    EXPECT_TRUE(test::finishes(stream));
    EXPECT_EQ(ran.load(), 1);
    EXPECT_TRUE(before.query());
  }
}

TEST_F(Fork, TheChildMayOpenItsOwn) {
  const Device device = Device::open("cpu");
  Gate gate(device);
  const Stream stream = device.stream();
  gate.hold(stream);
  stream.launch(test::nothing());
  for (const CpuPolicy policy : kAll) {
    EXPECT_EQ(0, test::child_exit([&] {
                const Device own = Device::open("cpu", {.policy = policy});
                Buffer memory = own.alloc(64);
                Buffer pinned = own.alloc(64, MemoryKind::kPinned);
                const Stream mine = own.stream();
                mine.launch(test::put(), {.writes = {memory}, .scalars = {9}});
                mine.copy(pinned, memory);
                if (!mine.sync_for(test::kPatience)) return 1;
                return pinned.host_read<int>()[3] == 9 ? 0 : 2;
              }));
  }
  gate.open();
  EXPECT_TRUE(test::finishes(stream));
}

TEST_F(Fork, TheChildMayDestroyWhatItInherited) {
  std::optional<Device> device = Device::open("cpu");
  std::optional<Stream> stream = device->stream();
  std::optional<Buffer> memory = device->alloc(4096);
  std::optional<Buffer> pooled = stream->alloc(4096);
  Gate gate(*device);
  gate.hold(*stream);
  stream->launch(test::nothing());
  EXPECT_EQ(0, test::child_exit([&] {
              pooled.reset();
              memory.reset();
              stream.reset();
              device.reset();
              return 0;
            }));
  gate.open();
  EXPECT_TRUE(test::finishes(*stream));
}

TEST_F(Fork, WhileWorkersAreBusy) {
  const Device device = Device::open("cpu");
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(device.stream());
  for (int round = 0; round < test::rounds(20); ++round) {
    for (int i = 0; i < 500; ++i) streams[static_cast<std::size_t>(i) % 4].launch(test::nothing());
    ASSERT_EQ(0, test::child_exit([&] {
                if (test::code_of([&] { streams[0].sync(); }) != ErrorCode::kInvalidDevice) return 1;
                const Device own = Device::open("cpu");
                const Stream mine = own.stream();
                mine.launch(test::nothing());
                return test::finishes(mine) ? 0 : 2;
              }));
  }
  for (const Stream& stream : streams) EXPECT_TRUE(test::finishes(stream));
}

// Threads of the parent change every process-wide table while the child is made: streams, buffers, names, captures,
// observers, devices. None of their locks may stay locked in the child.
TEST_F(Fork, WhileThreadsOpenStreamsAndDevices) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "g++ 12's address sanitizer does not take the locks of its allocator at a fork";
#endif
  struct Silent : Observer {
    void on(const Record&) override {}
  };
  for (const std::string name : {"cpu", "sim:h200"}) {
    const Device device = Device::open(name);
    std::atomic<bool> over{false};
    // Not on the stacks of the threads: a child uses these stacks again, and calls the observers that were attached
    // when it was forked.
    std::array<Silent, 3> observers;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        Silent& observer = observers[static_cast<std::size_t>(thread)];
        for (int round = 0; !over.load(std::memory_order_relaxed); ++round) {
          const Stream stream = device.stream(StreamFlags::kNonBlocking);
          const Buffer memory = stream.alloc(64, Name("memory " + std::to_string(thread * 1'000'000 + round)));
          stream.begin_capture();
          stream.launch(test::nothing());
          static_cast<void>(stream.end_capture());
          static_cast<void>(device.memory());
          static_cast<void>(device.now());
          if (round % 4 == 0) static_cast<void>(Device::open(name).stream());
          if (round % 8 == 0) attach_observer(observer), detach_observer(observer);
        }
      });
    }
    int code = 0;
    for (int round = 0; round < test::rounds(30) && code == 0; ++round) {
      std::optional<Stream> inherited = device.stream();
      static_cast<void>(device.per_thread_stream());
      code = test::child_exit([&] {
        const Device own = Device::open(name);
        const Stream mine = own.stream();
        const Buffer memory = mine.alloc(64, "memory of the child");
        mine.begin_capture();
        mine.launch(test::nothing());
        Plan plan = mine.end_capture();
        mine.launch(plan);
        Silent observer;
        attach_observer(observer), detach_observer(observer);
        if (!test::finishes(mine)) return 3;
        inherited.reset();
        if (test::code_of([&] { static_cast<void>(device.per_thread_stream()); }) != ErrorCode::kInvalidDevice)
          return 1;
        if (test::code_of([&] { static_cast<void>(device.now()); }) != ErrorCode::kInvalidDevice) return 2;
        static_cast<void>(device.memory());
        return 0;
      });
    }
    over.store(true);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(code, 0) << name;
  }
}

TEST_F(Fork, TheChildExitsWithItsCode) {
  static Device device = Device::open("cpu");
  static Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  stream.launch(test::nothing());
  EXPECT_EQ(47, test::child_exit([]() -> int { leave(47); }));
  gate.open();
  EXPECT_TRUE(test::finishes(stream));
}

}  // namespace
}  // namespace slip::test_exit
