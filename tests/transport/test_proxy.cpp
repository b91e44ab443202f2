// The proxy: connections that move while no thread waits for them, and waits that drive them.
#include "support/errors.hpp"
#include "support/forked.hpp"
#include "support/ranks.hpp"
#include "transport/net/proxy.hpp"
#include "transport/net_ends.hpp"

namespace slip::test::test_proxy {
namespace {

struct Proxied {
  std::vector<std::byte> from, to;
  std::unique_ptr<transport::ProxyConnection> sender, receiver;

  std::span<std::byte> out(std::size_t offset, std::size_t bytes) { return std::span(from).subspan(offset, bytes); }
  std::span<std::byte> in(std::size_t offset, std::size_t bytes) { return std::span(to).subspan(offset, bytes); }

  Proxied(transport::Proxy& proxy, std::size_t bytes) : from(bytes), to(bytes) {
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 5 + i / 1000);
    Ends ends;
    sender = std::make_unique<transport::ProxyConnection>(proxy, std::move(ends.sender));
    receiver = std::make_unique<transport::ProxyConnection>(proxy, std::move(ends.receiver));
  }
};

TEST(Proxies, MoveLinesThatNobodyWaitsFor) {
  transport::Proxy proxy;
  Proxied lines(proxy, 16 << 20);
  ASSERT_TRUE(lines.receiver->post(lines.to));
  ASSERT_TRUE(lines.sender->post(lines.from));
  const std::int64_t deadline = long_deadline().at_ns;
  while (lines.receiver->done() < 1 || lines.sender->done() < 1) {
    ASSERT_LT(base::now_ns(), deadline);
    base::yield_thread();
  }
  EXPECT_EQ(lines.from, lines.to);
  EXPECT_EQ(lines.receiver->moved(0), lines.from.size());
}

TEST(Proxies, NotifyTheirSubscriber) {
  struct Counter final : base::Subscriber {
    void wake_up() noexcept override { times.fetch_add(1); }
    std::atomic<int> times{0};
  };
  transport::Proxy proxy;
  Proxied lines(proxy, 1 << 20);
  Counter receives, sends, nothing;
  lines.receiver->set_subscriber(&receives);
  lines.sender->set_subscriber(&sends);
  ASSERT_TRUE(lines.receiver->post(lines.to));
  ASSERT_TRUE(lines.sender->post(lines.from));
  const std::int64_t deadline = long_deadline().at_ns;
  while (receives.times == 0) {
    ASSERT_LT(base::now_ns(), deadline);
    base::yield_thread();
  }
  EXPECT_EQ(lines.from, lines.to);
  lines.sender->set_subscriber(nullptr);
  lines.receiver->set_subscriber(&nothing);
  const int seen = receives.times;
  ASSERT_TRUE(lines.receiver->post(lines.to));
  lines.sender = nullptr;  // the connection ends: an error, which wakes the sleeper, too
  while (nothing.times == 0) {
    ASSERT_LT(base::now_ns(), deadline);
    base::yield_thread();
  }
  EXPECT_TRUE(fails([&] { lines.receiver->wait(2, long_deadline()); }, ErrorCode::kRankLost));
  EXPECT_EQ(receives.times, seen);
}

TEST(Proxies, AreDrivenByTheWaitingThread) {
  transport::Proxy proxy;
  Proxied lines(proxy, 1 << 20);
  constexpr std::size_t kChunk = 4096;
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::ProxyConnection& line = rank == 0 ? *lines.receiver : *lines.sender;
    for (std::uint64_t i = 0; i < lines.from.size() / kChunk; ++i) {
      const auto next =
          i % 16 == 0 ? transport::ProxyConnection::Next::kWait : transport::ProxyConnection::Next::kCompute;
      while (!line.post(rank == 0 ? lines.in(i * kChunk, kChunk) : lines.out(i * kChunk, kChunk), next))
        line.wait(i - transport::ProxyConnection::kDepth / 2, long_deadline());
      if (i % 16 == 0) line.wait(i + 1, long_deadline());
    }
    line.wait(lines.from.size() / kChunk, long_deadline());
  }));
  EXPECT_EQ(lines.from, lines.to);
}

TEST(Proxies, HaveARingThatIsFull) {
  transport::Proxy proxy;
  Proxied lines(proxy, 4096);
  std::uint64_t posted = 0;
  while (lines.receiver->post(lines.in(posted, 1))) ++posted;
  EXPECT_EQ(posted, transport::ProxyConnection::kDepth);
  ASSERT_TRUE(lines.sender->post(lines.out(0, 1)));
  lines.receiver->wait(1, long_deadline());
  EXPECT_TRUE(lines.receiver->post(lines.in(posted, 1)));
}

TEST(Proxies, NameTheMissingRank) {
  transport::Proxy proxy;
  Proxied lines(proxy, 4096);
  lines.receiver->post(lines.in(0, 100));
  EXPECT_TRUE(fails([&] { lines.receiver->wait(1, hasty()); }, ErrorCode::kTimeout, {"rank 1 at", "0 receives of 1"}));
  transport::AbortFlag abort;
  abort.set();
  EXPECT_TRUE(fails([&] { lines.receiver->wait(1, {0, &abort}); }, ErrorCode::kAborted, {"rank 1 at"}));
  lines.sender->post(lines.out(0, 50));  // the connection still works after a wait that ended
  lines.receiver->wait(1, long_deadline());
  EXPECT_EQ(lines.receiver->moved(0), 50U);
  lines.receiver->post(lines.in(0, 100));
  lines.sender.reset();
  EXPECT_TRUE(fails([&] { lines.receiver->wait(2, long_deadline()); }, ErrorCode::kRankLost, {"rank 1 at"}));
  EXPECT_TRUE(fails([&] { lines.receiver->post(lines.in(0, 1)); }, ErrorCode::kRankLost, {"rank 1 at"}));
}

TEST(Proxies, SayWhatToSleepFor) {
  transport::Proxy proxy;
  Proxied lines(proxy, 4096);
  std::vector<pollfd> all;
  lines.receiver->begin_drive();
  lines.receiver->post(lines.in(0, 100), transport::ProxyConnection::Next::kPost);
  EXPECT_EQ(lines.receiver->watch(all), 0);  // the connection has not started it yet
  EXPECT_FALSE(lines.receiver->drive());
  all.clear();
  ASSERT_GT(lines.receiver->watch(all), 0);
  transport::wait_for_any(std::span(all), 1);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].revents, 0);
  lines.sender->post(lines.out(0, 100));
  transport::wait_for_any(std::span(all), long_deadline().at_ns - base::now_ns());
  EXPECT_EQ(all[0].revents, POLLIN);
  EXPECT_TRUE(lines.receiver->drive());
  EXPECT_EQ(lines.receiver->done(), 1U);
  lines.receiver->end_drive();
}

TEST(Proxies, WakeTheSleeperWhenAnotherThreadPosts) {
  transport::Proxy proxy;
  Proxied lines(proxy, 8 << 20);
  expect_no_errors(as_ranks(3, [&](int rank) {
    if (rank == 0) lines.receiver->wait(100, long_deadline());  // nothing is posted yet
    for (std::uint64_t i = 0; rank == 1 && i < 100; ++i) {
      while (!lines.receiver->post(lines.in(i * 80'000, 80'000))) base::yield_thread();
    }
    for (std::uint64_t i = 0; rank == 2 && i < 100; ++i) {
      while (!lines.sender->post(lines.out(i * 80'000, 80'000)))
        lines.sender->wait(lines.sender->done() + 1, long_deadline());
    }
    if (rank == 2) lines.sender->wait(100, long_deadline());
  }));
  EXPECT_TRUE(std::equal(lines.to.begin(), lines.to.begin() + 8'000'000, lines.from.begin()));
}

TEST(Proxies, CanBeClosedWithOperationsPosted) {
  transport::Proxy proxy;
  for (int i = 0; i < 20; ++i) {
    Proxied lines(proxy, 8 << 20);
    EXPECT_TRUE(lines.receiver->post(lines.in(0, 100)));
    EXPECT_TRUE(lines.sender->post(lines.out(0, 8 << 20)));
  }
  Proxied later(proxy, 1000);  // the proxy still moves what others post
  EXPECT_TRUE(later.receiver->post(later.to));
  EXPECT_TRUE(later.sender->post(later.from));
  later.receiver->wait(1, long_deadline());
  EXPECT_EQ(later.from, later.to);
}

// A receiver whose messages never come. It notes whether its memory is deregistered while its receives are under way.
class EndlessReceiver final : public transport::NetReceiver {
 public:
  struct Notes {
    bool receives = false, deregistered = false, deregistered_too_soon = false;
  };
  explicit EndlessReceiver(Notes& notes) : notes_(notes) {}
  ~EndlessReceiver() override { notes_.receives = false; }
  std::unique_ptr<transport::NetMemory> register_memory(std::span<std::byte> bytes) override {
    return std::make_unique<Registered>(bytes, notes_);
  }
  bool keeps_addresses() const override { return true; }
  transport::NetRequest* irecv(std::span<const transport::NetPart> parts) override {
    notes_.receives = true;
    return take_receive(parts);
  }
  bool progress() override { return false; }
  std::int64_t watch(std::vector<pollfd>&) const override { return transport::kNetMaxSleepNs; }

 private:
  struct Registered final : transport::NetMemory {
    Registered(std::span<std::byte> bytes, Notes& all) : NetMemory(bytes), notes(all) {}
    ~Registered() override {
      notes.deregistered = true;
      notes.deregistered_too_soon = notes.receives;
    }
    Notes& notes;
  };
  Notes& notes_;
};

// Otherwise an adapter would still write to memory that is no longer registered.
TEST(Proxies, EndTheOperationsBeforeTheirMemoryIsDeregistered) {
  transport::Proxy proxy;
  std::vector<std::byte> to(100);
  EndlessReceiver::Notes notes;
  {
    transport::ProxyConnection line(proxy, std::make_unique<EndlessReceiver>(notes));
    line.begin_drive();  // so the proxy's thread does not use the notes
    ASSERT_TRUE(line.post(to));
    while (!notes.receives) static_cast<void>(line.drive());
  }
  EXPECT_TRUE(notes.deregistered);
  EXPECT_FALSE(notes.deregistered_too_soon);
}

TEST(Proxies, AreMadeAnewAfterAFork) {
  if (!kThreadsAfterFork) GTEST_SKIP() << "the thread sanitizer does not run threads in forked children";
  static_cast<void>(transport::Proxy::of_process());
  const Child child([] {
    Proxied lines(transport::Proxy::of_process(), 1 << 20);
    lines.sender->post(lines.out(0, 1 << 20));
    lines.receiver->post(lines.in(0, 1 << 20));
    lines.receiver->wait(1, long_deadline());
    return std::string(lines.from == lines.to ? "came" : "differs");
  });
  EXPECT_EQ(child.report(), "came");
}

}  // namespace
}  // namespace slip::test::test_proxy
