// Exchanges on the cpu device, in particular those that are done before they are in their stream.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "slip/slip.hpp"
#include "support/errors.hpp"

namespace slip::test_exchanges {
namespace {

using test::fails;

// Ends in its first step, by whomever that is done.
class Prompt final : public runtime::Exchange {
 public:
  bool begin() noexcept override {
    ++begun;
    return advance(By::kWorker);
  }
  bool advance(By) noexcept override {
    seen = *source;
    return true;
  }
  bool can_advance() noexcept override { return true; }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const runtime::Failure* cause) override {
    ++finished;
    if (!cause && wrong) throw Error(ErrorCode::kRankLost, "as asked", {});
  }

  const std::uint64_t* source = nullptr;
  std::uint64_t seen = 0;
  int begun = 0, finished = 0;
  bool wrong = false;
};

std::uint64_t submit(const Stream& stream, runtime::Exchange& exchange, const Ranges& reads = {}) {
  return runtime::issue(*stream.state(),
                        {.kind = OpKind::kExchange, .name = "exchange", .reads = reads, .exchange = &exchange});
}

TEST(Exchanges, AreDoneWhenTheyEndedWhileTheyWereSubmitted) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  const Buffer buffer = device.alloc(1024);
  const std::uint64_t source = 7;
  std::uint64_t before = 0;
  // Of one to five cells, and more than the ring has: some come behind padding.
  for (std::size_t turn = 0; turn < 10'000; ++turn) {
    Prompt prompt;
    prompt.source = &source;
    const std::vector<Range> ranges(turn % 5 * 4, buffer.slice(0, 8));
    const std::uint64_t position = submit(stream, prompt, ranges);
    ASSERT_EQ(prompt.begun, 1) << turn;
    ASSERT_EQ(prompt.finished, 1) << turn;
    ASSERT_GE(position, before) << turn;  // an exchange that has ended takes no place in the stream's ring
    before = position;
    ASSERT_TRUE(stream.query()) << turn;
  }
  const Event event = stream.record();
  EXPECT_TRUE(event.query());
  stream.sync();
}

TEST(Exchanges, FailTheirStreamWhenTheyEndedWhileTheyWereSubmitted) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  const std::uint64_t source = 7;
  Prompt good, bad, later;
  good.source = bad.source = later.source = &source;
  submit(stream, good);
  const Event event = stream.record();
  bad.wrong = true;
  submit(stream, bad);
  EXPECT_EQ(bad.finished, 1);
  EXPECT_TRUE(event.query());  // it is before the failure
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kRankLost));
  EXPECT_TRUE(fails([&] { submit(stream, later); }, ErrorCode::kRankLost));
  EXPECT_EQ(later.finished, 0);
}

// The thread that ran the op before may still be about to leave the stream when the next one comes and ends at once.
TEST(Exchanges, KeepTheOrderOfTheirStreamWhoeverRunsIt) {
  const Device device = Device::open("cpu", {.compute_workers = 2});
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  static std::uint64_t count;
  count = 0;
  const Kernel kernel{"count", [](const Args&) { ++count; }};
  const int turns = 20'000;
  std::vector<Prompt> prompts(turns);
  int begun = 0;
  for (int turn = 0; turn < turns; ++turn) {
    Prompt& prompt = prompts[static_cast<std::size_t>(turn)];
    prompt.source = &count;
    stream.launch(kernel, {});
    const Event event = stream.record();
    // So long that a thread of the device takes the op; it leaves the stream while the next one is submitted.
    for (int look = 0; look < turn % 512 && !event.query(); ++look) base::cpu_relax();
    submit(stream, prompt);
    submit(stream, prompt);
    if (turn % 16 == 0) stream.sync();
  }
  stream.sync();
  for (int turn = 0; turn < turns; ++turn) {
    const Prompt& prompt = prompts[static_cast<std::size_t>(turn)];
    begun += prompt.begun;
    ASSERT_EQ(prompt.seen, static_cast<std::uint64_t>(turn) + 1);
    ASSERT_EQ(prompt.finished, 2) << turn;
  }
  EXPECT_EQ(count, static_cast<std::uint64_t>(turns));
  RecordProperty("begun", begun);
}

// An exchange that waits for `come` and notifies its subscriber.
class NotifyingExchange final : public runtime::Exchange {
 public:
  bool advance(By) noexcept override { return come.load(std::memory_order_acquire); }
  bool can_advance() noexcept override {
    const std::int64_t now = base::now_ns();
    if (looks++ % kWindow == 0) longest = std::max(longest.load(), now - std::exchange(window, now));
    return come.load(std::memory_order_acquire);
  }
  bool subscribe(base::Subscriber& waiter) noexcept override {
    subscriber.store(&waiter, std::memory_order_release);
    return true;
  }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const runtime::Failure*) override {}

  std::atomic<bool> come{false};
  std::atomic<base::Subscriber*> subscriber{nullptr};
  static constexpr int kWindow = 10;  // looks
  int looks = 0;
  std::int64_t window = base::now_ns();  // when one began
  std::atomic<std::int64_t> longest{0};
};

base::Subscriber* subscriber_of(const NotifyingExchange& exchange) {
  const std::int64_t until = base::now_ns() + 60'000'000'000;
  while (!exchange.subscriber.load(std::memory_order_acquire) && base::now_ns() < until) base::yield_thread();
  return exchange.subscriber.load(std::memory_order_acquire);
}

TEST(Exchanges, ArePolledWhenTheirSubscriberIsNotified) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  for (int turn = 0; turn < 300; ++turn) {
    NotifyingExchange exchange;
    submit(stream, exchange);
    base::Subscriber* const subscriber = subscriber_of(exchange);
    ASSERT_NE(subscriber, nullptr) << turn;
    exchange.come.store(true, std::memory_order_release);
    if (turn % 3 != 0) subscriber->wake_up();  // else it is found by and by, as failures are
    stream.sync();
  }
}

// With notifications the pool polls every 2 ms; without them it polls five times in 1 ms. So ten polls take 20 ms,
// unless a notification or a new searcher adds one. A busy machine can only make it longer.
TEST(Exchanges, WithNotificationsAreSeldomPolled) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  NotifyingExchange exchange;
  submit(stream, exchange);
  base::Subscriber* const subscriber = subscriber_of(exchange);
  ASSERT_NE(subscriber, nullptr);
  const std::int64_t until = base::now_ns() + 60'000'000'000;
  while (exchange.longest < 18'000'000 && base::now_ns() < until) base::yield_thread();
  EXPECT_GE(exchange.longest, 18'000'000);
  exchange.come.store(true, std::memory_order_release);
  subscriber->wake_up();
  stream.sync();
}

// While the searcher sleeps for long, work that comes is run all the same, also what a busy thread keeps for itself.
TEST(Exchanges, WithNotificationsDelayNothingElse) {
  const Device device = Device::open("cpu", {.compute_workers = 2});
  const Stream stream = device.stream(StreamFlags::kNonBlocking), first = device.stream(StreamFlags::kNonBlocking),
               second = device.stream(StreamFlags::kNonBlocking);
  NotifyingExchange exchange;
  submit(stream, exchange);
  base::Subscriber* const subscriber = subscriber_of(exchange);
  ASSERT_NE(subscriber, nullptr);
  static std::atomic<int> count;
  static std::atomic<bool> gate;
  count = 0;
  const Kernel quick{"quick", [](const Args&) { count.fetch_add(1); }};
  const Kernel held{"held", [](const Args&) {
                      while (!gate.load()) base::yield_thread();
                    }};
  for (int turn = 0; turn < 200; ++turn) {
    gate = false;
    first.launch(quick, {});
    second.wait(first.record());
    second.launch(quick, {});
    first.launch(held, {});  // the thread that runs it may have the other stream in its own queue
    const std::int64_t until = base::now_ns() + 60'000'000'000;
    while (!second.query() && base::now_ns() < until) base::yield_thread();
    EXPECT_TRUE(second.query()) << turn;
    gate = true;
    first.sync();
  }
  EXPECT_EQ(count, 400);
  exchange.come.store(true, std::memory_order_release);
  subscriber->wake_up();
  stream.sync();
}

}  // namespace
}  // namespace slip::test_exchanges
