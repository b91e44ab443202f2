// Section A: handles, flags, opening and closing of streams (rules 15-19).
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::stream_life {
namespace {

class StreamLife : public DeviceTest {};

TEST_P(StreamLife, Rule15_HandlesChooseTheDefaultStreamWhateverTheMode) {
  for (const DefaultStream mode : {DefaultStream::kLegacy, DefaultStream::kPerThread}) {
    const Device device = open([mode](DeviceOptions& options) { options.default_stream = mode; });
    const StreamRef legacy = device.legacy_stream(), own = device.per_thread_stream();
    EXPECT_FALSE(legacy == own);
    EXPECT_EQ(device.default_stream(), mode == DefaultStream::kLegacy ? legacy : own);
    const Stream free = device.stream();
    Gate gate(device);
    gate.hold(free);
    busy(own, 0);
    EXPECT_TRUE(finished(own)) << "the per-thread stream is no barrier";
    busy(legacy, 0);
    EXPECT_TRUE(progressed(device));
    EXPECT_FALSE(legacy.query()) << "the legacy stream is one";
  }
}

TEST_P(StreamLife, Rule16_PlainStreamsAreBlocking) {
  const Device device = open();
  const Stream plain = device.stream(), free = device.stream(StreamFlags::kNonBlocking);
  EXPECT_EQ(plain.flags(), StreamFlags::kBlocking);
  EXPECT_EQ(free.flags(), StreamFlags::kNonBlocking);
  Gate gate(device);
  gate.hold(device.legacy_stream());
  busy(plain, 0);
  busy(free, 0);
  EXPECT_TRUE(finished(free));
  EXPECT_FALSE(plain.query());
}

TEST_P(StreamLife, Rule17_BadFlagsAreRefused) {
  const Device device = open();
  EXPECT_TRUE(
      fails([&] { static_cast<void>(device.stream(static_cast<StreamFlags>(7))); }, ErrorCode::kInvalidValue, {"7"}));
  EXPECT_NO_THROW(static_cast<void>(device.stream()));
}

TEST_P(StreamLife, Rule18_StreamIdsAreNeverUsedAgain) {
  const Device device = open();
  std::set<std::uint64_t> ids = {device.legacy_stream().id(), device.per_thread_stream().id()};
  for (int i = 0; i < 200; ++i) {
    const Stream stream = device.stream();
    if (i % 2 == 0) busy(stream, 0);
    EXPECT_TRUE(ids.insert(stream.id()).second) << stream.id();
  }
}

TEST_P(StreamLife, Rule19_DestroyingAStreamReturnsAndItsWorkStillRuns) {
  const Device device = open();
  const Trail trail(device);
  Gate gate(device);
  StreamRef dangling = device.legacy_stream();
  {
    const Stream stream = device.stream();
    dangling = stream;
    gate.hold(stream);
    trail.leave(stream, 1);
    trail.leave(stream, 2);
  }  // returns although the gate is closed
  EXPECT_TRUE(fails([&] { trail.leave(dangling, 3); }, ErrorCode::kInvalidHandle, {std::to_string(dangling.id())}));
  const Stream next = device.stream();
  EXPECT_FALSE(next == dangling);
  EXPECT_TRUE(finished(next)) << "a new stream has nothing to do with the old one";
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

// A thread submits through a reference while the stream is destroyed, and its state becomes another stream at once. A
// call of the thread throws eventually; what it submitted before that runs, and nothing waits for ever.
TEST_P(StreamLife, Rule19_DestroyingAStreamThatAnotherThreadUsesLeavesNothingStuck) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "this program races on purpose";
#endif
  constexpr int kRounds = 100;
  const Device device = open();
  std::optional<Stream> stream(device.stream());
  std::mutex mutex;
  StreamRef current = *stream;  // guarded by mutex
  std::atomic<bool> over{false}, failed{false};
  std::atomic<int> calls{0};
  const auto reference = [&] {
    const std::lock_guard lock(mutex);
    return current;
  };
  const auto submit = [&] {
    for (std::uint64_t last = 0; !over.load();) {
      const StreamRef used = reference();
      if (std::exchange(last, used.id()) == used.id()) {  // it had its calls
        std::this_thread::yield();
        continue;
      }
      try {
        for (int i = 0; i < 10'000; ++i) {
          busy(used, 0);
          if (i % 8 == 0) static_cast<void>(used.record_timed());
          ++calls;
        }
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInvalidHandle) continue;
        failed = true;
        throw;
      }
    }
  };
  HostCall first(submit), second(submit);
  int before = 0;  // calls when the stream was handed to the threads
  for (int round = 0; round < kRounds; ++round) {
    busy(device.legacy_stream(), 0);
    for (int turn = 1; calls < before + 20 && !failed; ++turn) {  // then they are at it
      if (turn % 4096 == 0) std::this_thread::yield();
    }
    stream.reset();
    stream.emplace(device.stream(round % 2 == 0 ? StreamFlags::kNonBlocking : StreamFlags::kBlocking));
    {
      const std::lock_guard lock(mutex);
      before = calls;
      current = *stream;
    }
    if (round % 10 == 0) device.sync();
  }
  over.store(true);
  EXPECT_TRUE(first.ends() && second.ends());
  HostCall sync([&] { device.sync(); });
  EXPECT_TRUE(sync.ends());
}

TEST_P(StreamLife, AStreamMayBeUsedFromSeveralThreads) {
  constexpr std::uint32_t kThreads = 4, kOps = 100;
  const Device device = open();
  const Buffer word = device.alloc(4);
  const Stream stream = device.stream(), other = device.stream();
  device.fill(word, 0);
  device.sync();
  {
    std::vector<std::unique_ptr<HostCall>> calls;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      calls.push_back(std::make_unique<HostCall>([&] {
        for (std::uint32_t op = 0; op < kOps; ++op) {
          stream.launch(add_kernel(), {.reads = {word}, .writes = {word}, .scalars = {1}});
          if (op % 10 == 0) other.wait(stream.record());
          if (op % 25 == 0) busy(device.legacy_stream(), 0);
          if (op % 50 == 0) stream.sync();
        }
      }));
    }
    for (const auto& call : calls) EXPECT_TRUE(call->ends());
  }
  EXPECT_EQ(words_of(device, word)[0], kThreads * kOps);
}

SLIP_OVER_DEVICES(StreamLife);

TEST(Devices, CudaIsCoveredWhereItIs) {
  for (const DeviceCase& device : device_cases()) {
    if (device.name == "cuda:0") return;
  }
  GTEST_SKIP() << "no device cuda:0 in this build or on this machine: the suites run on cpu and sim only";
}

}  // namespace
}  // namespace slip::test::stream_life
