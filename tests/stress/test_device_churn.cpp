// Devices of several policies, opened and closed by several threads at once, with waits across them: stream states go
// from one device to the next through the process-wide slab, and must carry nothing over.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slip/device.hpp"
#include "support/kernels.hpp"
#include "support/share.hpp"
#include "support/watchdog.hpp"

namespace slip::stress::test_device_churn {
namespace {

constexpr CpuPolicy kPolicies[] = {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom};
constexpr int kStreams = 4;

// Opens two devices, passes a word through their streams and back, and closes them. True: the word is right.
bool pass_a_word(std::uint64_t seed) {
  const auto options = [seed](std::uint64_t number) {
    return DeviceOptions{.policy = kPolicies[(seed + number) % 3], .seed = seed, .compute_workers = 2};
  };
  const bool simulated = seed % 7 == 3;
  const Device first = Device::open("cpu", options(0));
  const Device second = simulated ? Device::open("sim:h200") : Device::open("cpu", options(seed / 3));
  const Buffer word = first.alloc(4, MemoryKind::kPinned);
  const Buffer back = first.alloc(4, MemoryKind::kPinned);
  std::vector<Stream> streams;
  for (int i = 0; i < kStreams; ++i) {
    const auto flags = (seed >> i & 1) != 0 ? StreamFlags::kBlocking : StreamFlags::kNonBlocking;
    streams.push_back((i % 2 == 0 ? first : second).stream(flags));
  }
  streams[0].launch(test::store_kernel(), {.writes = {word}, .scalars = {1u}});
  for (std::size_t i = 1; i < streams.size(); ++i) {
    streams[i].wait(streams[i - 1].record());
    streams[i].launch(test::add_kernel(), {.reads = {word}, .writes = {word}, .scalars = {1u}});
    if (seed % 5 == 0) first.legacy_stream().launch(test::idle_kernel());
  }
  streams[0].wait(streams.back().record());
  streams[0].launch(test::add_kernel(), {.reads = {word}, .writes = {back}, .scalars = {1u}});
  if (seed % 2 == 0) first.sync();
  else streams[0].sync();
  return back.host_read<std::uint32_t>()[0] == kStreams + 1;
}

// A thread that synchronises the streams that it is given, again and again: it runs what it finds, also in a stream to
// which another thread submits just then.
class Synchroniser {
 public:
  Synchroniser() = default;
  Synchroniser(const Synchroniser&) = delete;
  Synchroniser& operator=(const Synchroniser&) = delete;
  ~Synchroniser() {
    over_.store(true);
    thread_.join();
  }
  // Returns when the thread has them.
  void take(const std::vector<Stream>& streams) {
    const std::lock_guard lock(mutex_);
    streams_.assign(streams.begin(), streams.end());
  }
  // Returns when the thread uses none of them any more.
  void drop() {
    const std::lock_guard lock(mutex_);
    streams_.clear();
  }

 private:
  void run() {
    while (!over_.load()) {
      const std::lock_guard lock(mutex_);
      for (const StreamRef stream : streams_) stream.sync();
    }
  }

  std::mutex mutex_;
  std::vector<StreamRef> streams_;  // guarded by mutex_
  std::atomic<bool> over_{false};
  std::thread thread_{[this] { run(); }};
};

// Counts its runs and takes some ten microseconds, so that it detects two threads that run one lane concurrently.
const Kernel& count_kernel() {
  static const Kernel kCount{"count",
                             [](const Args& args) {
                               args.scalar<std::atomic<std::uint64_t>*>(0)->fetch_add(1);
                               for (int i = 0; i < 20'000; ++i) asm volatile("" ::: "memory");
                             },
                             nullptr};
  return kCount;
}

// Each thread opens and closes devices of all policies, two at a time.
TEST(DeviceChurn, StatesGoFromDeviceToDeviceAcrossPolicies) {
  constexpr std::uint64_t kThreads = 4, kRounds = 1'000 / test::kShare;
  test::Watchdog watchdog(std::chrono::seconds(300));
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread, &wrong] {
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        // relaxed: read after the threads are joined.
        if (!pass_a_word(thread * kRounds + round)) wrong.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u) << "of " << kThreads * kRounds << " rounds";
}

// The first op of each stream comes while another thread waits for that stream. Every second device is concurrent: its
// lanes come from a device that ran one op at a time.
TEST(DeviceChurn, FirstOpsWhileAnotherThreadSynchronises) {
  constexpr std::uint64_t kThreads = 2, kRounds = 1'000 / test::kShare, kOps = 8;
  test::Watchdog watchdog(std::chrono::seconds(300));
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> ran{0};
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread, &ran] {
      Synchroniser other;
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        const CpuPolicy policy = round % 2 == 0 ? kPolicies[1 + (round / 2 + thread) % 2] : CpuPolicy::kConcurrent;
        const Device device = Device::open("cpu", {.policy = policy, .seed = round, .compute_workers = 2});
        std::vector<Stream> streams;
        for (std::uint64_t i = 0; i < kOps; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
        other.take(streams);
        for (const Stream& stream : streams) stream.launch(count_kernel(), {.scalars = {&ran}});
        other.drop();
        device.sync();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), kThreads * kRounds * kOps) << "each op runs once";
}

}  // namespace
}  // namespace slip::stress::test_device_churn
