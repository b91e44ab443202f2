// Waits between streams: an op carries several of them, more become ops of their own.
#include <atomic>
#include <cstdint>
#include <vector>

#include "backend/support.hpp"
#include "slip/buffer.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_waits {
namespace {

using test::Bodies;

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

// Streams that each end when the test says so.
class Sources {
 public:
  Sources(const Device& device, std::size_t count) : words_(device.alloc(4 * count, MemoryKind::kPinned)) {
    for (std::size_t i = 0; i < count; ++i) {
      word(i).store(0);
      streams_.push_back(device.stream());
      streams_.back().wait_value(words_.slice(4 * i, 4), 1);
    }
  }
  ~Sources() {
    for (std::size_t i = 0; i < streams_.size(); ++i) end(i);
  }
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  void end(std::size_t i) { word(i).store(1); }
  const Stream& operator[](std::size_t i) const { return streams_[i]; }

 private:
  std::atomic<std::uint32_t>& word(std::size_t i) {
    return *(reinterpret_cast<std::atomic<std::uint32_t>*>(words_.native()) + i);
  }
  Buffer words_;
  std::vector<Stream> streams_;
};

TEST(Waits, AnOpRunsWhenTheLastOfManyIsReached) {
  for (const std::size_t count : {1U, 2U, 7U, 8U, 9U, 16U, 17U, 30U}) {
    for (const std::size_t last : {std::size_t{0}, count / 2, count - 1}) {
      Bodies bodies;
      const Device device = Device::open("cpu");
      Sources sources(device, count);
      const Stream joined = device.stream();
      std::atomic<bool> ran{false};
      for (std::size_t i = 0; i < count; ++i) joined.wait(sources[i].record());
      bodies.launch(joined, [&] { ran.store(true); });
      for (std::size_t i = 0; i < count; ++i) {
        if (i == last) continue;
        sources.end(i);
        ASSERT_TRUE(test::finishes(sources[i]));
      }
      test::yield_times(20);
      EXPECT_FALSE(ran.load()) << count << " waits, without the one at " << last;
      sources.end(last);
      ASSERT_TRUE(test::finishes(joined));
      EXPECT_TRUE(ran.load());
    }
  }
}

TEST(Waits, ThatNoOpFollowsHoldTheStream) {
  for (const std::size_t count : {1U, 8U, 9U, 20U}) {
    const Device device = Device::open("cpu");
    Sources sources(device, count);
    const Stream joined = device.stream();
    for (std::size_t i = 0; i < count; ++i) joined.wait(sources[i].record());
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_FALSE(joined.query()) << count << " waits, " << i << " reached";
      sources.end(i);
      ASSERT_TRUE(test::finishes(sources[i]));
    }
    ASSERT_TRUE(test::finishes(joined));
  }
}

TEST(Waits, AnyOfManyCarriesItsFailure) {
  constexpr std::size_t kCount = 11;
  for (std::size_t bad = 0; bad < kCount; ++bad) {
    Bodies bodies;
    const Device device = Device::open("cpu");
    std::vector<Stream> sources;
    const Stream joined = device.stream(), held = device.stream();
    bool ran = false;
    test::Gate gate(device);  // no source fails before its end is recorded: a failed stream takes no record
    gate.hold(held);
    for (std::size_t i = 0; i < kCount; ++i) {
      sources.push_back(device.stream());
      sources[i].wait(held.record());
      bodies.launch(sources[i], [i, bad] {
        if (i == bad) throw std::runtime_error("the bad one");
      });
      joined.wait(sources[i].record());
    }
    bodies.launch(joined, [&] { ran = true; });
    gate.open();
    EXPECT_TRUE(test::contains(test::text_of([&] { joined.sync(); }), "the bad one")) << bad;
    EXPECT_FALSE(ran) << bad;
  }
}

// A slot of a round, written by a leaf and read by the next root: only the waits order them.
const Kernel kWrite{"write", [](const Args& args) { *args.scalar<std::uint64_t*>(0) = args.scalar<std::uint64_t>(1); },
                    nullptr};
const Kernel kCompare{"compare",
                      [](const Args& args) {
                        const auto* slots = args.scalar<const std::vector<std::uint64_t>*>(0);
                        for (const std::uint64_t slot : *slots)
                          if (slot != args.scalar<std::uint64_t>(1)) ++*args.scalar<std::uint64_t*>(2);
                      },
                      nullptr};

TEST(Waits, FansOfAllWidthsInRingsOfAllSizes) {
  for (const std::size_t depth : {16U, 64U, 4096U}) {
    for (const std::size_t width : {1U, 3U, 8U, 9U, 20U}) {
      std::vector<std::uint64_t> slots(width, 0);
      std::uint64_t wrong = 0;
      const Device device = Device::open("cpu", {.queue_depth = depth});
      const Stream root = device.stream();
      std::vector<Stream> leaves;
      for (std::size_t i = 0; i < width; ++i) leaves.push_back(device.stream());
      const auto rounds = static_cast<std::uint64_t>(test::rounds(1'000));
      for (std::uint64_t round = 0; round < rounds; ++round) {
        root.launch(kCompare, {.scalars = {&slots, round, &wrong}});
        const Event begun = root.record();
        for (std::size_t i = 0; i < width; ++i) {
          leaves[i].wait(begun);
          leaves[i].launch(kWrite, {.scalars = {&slots[i], round + 1}});
          root.wait(leaves[i].record());
        }
      }
      ASSERT_TRUE(test::finishes(root)) << width << " leaves, depth " << depth;
      EXPECT_EQ(wrong, 0U) << width << " leaves, depth " << depth;
      EXPECT_EQ(slots, std::vector<std::uint64_t>(width, rounds));
    }
  }
}

}  // namespace
}  // namespace slip::test_waits
