// Links that are closed in the middle of a message, as after a call that failed: afterwards no link touches the bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/sync.hpp"
#include "comm/link/net_link.hpp"
#include "comm/link/pipe.hpp"
#include "cpu_ranks.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "transport/net_ends.hpp"

namespace slip::test_links {
namespace {

using test::Bytes;
using test::Ends;
using test::fails;

constexpr std::ptrdiff_t kMoreThanSocketsHold = 64 << 20;

bool untouched(const Bytes& bytes) { return bytes == Bytes(bytes.size()); }

// Until the line reports its end, or everything was moved.
bool ends_early(transport::ProxyConnection& line, std::span<std::byte> bytes) {
  try {
    static_cast<void>(line.post(bytes));
    line.wait(1, test::long_deadline());
    return line.moved(0) < bytes.size();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kRankLost;
  }
}

template <class End>
std::unique_ptr<transport::ProxyConnection> proxied(std::unique_ptr<End> end) {
  return std::make_unique<transport::ProxyConnection>(transport::Proxy::of_process(), std::move(end));
}

class ClosedNetLinks : public test::NetTest {};
INSTANTIATE_TEST_SUITE_P(Over, ClosedNetLinks, test::every_net(), test::net_test_name);

TEST_P(ClosedNetLinks, TheProxyNoLongerReceives) {
  Ends ends(net());
  const auto sender = proxied(std::move(ends.sender));
  comm::NetInlet inlet([&] { return proxied(std::move(ends.receiver)); }, 0, 1);
  Bytes in(kMoreThanSocketsHold), out(kMoreThanSocketsHold, std::byte{1});
  inlet.begin(in.data(), in.size(), nullptr);
  static_cast<void>(inlet.drive());
  inlet.set_driven(false);
  inlet.close();
  EXPECT_TRUE(ends_early(*sender, out));
  EXPECT_TRUE(untouched(in));
}

TEST_P(ClosedNetLinks, TheProxyNoLongerSends) {
  Ends ends(net());
  const auto receiver = proxied(std::move(ends.receiver));
  comm::NetOutlet outlet([&] { return proxied(std::move(ends.sender)); });
  Bytes in(kMoreThanSocketsHold), out(kMoreThanSocketsHold, std::byte{1});
  outlet.begin(out.data(), out.size(), nullptr);
  outlet.set_driven(false);
  outlet.close();
  std::fill(out.begin(), out.end(), std::byte{2});
  EXPECT_TRUE(ends_early(*receiver, in));
  EXPECT_EQ(std::count(in.begin(), in.end(), std::byte{2}), 0);
}

// A pipe between two threads, and a message in it that travels by address.
struct Threads {
  std::unique_ptr<comm::PipeMemory> memory = std::make_unique<comm::PipeMemory>();
  comm::PipeOutlet outlet{*memory, comm::PipeReach::kThreads};
  comm::PipeInlet inlet{*memory, 0, 1, 0};
  Bytes in, out;

  explicit Threads(std::size_t bytes) : in(bytes), out(bytes, std::byte{1}) {
    outlet.begin(out.data(), bytes, nullptr);
    static_cast<void>(outlet.drive());
    inlet.begin(in.data(), bytes, nullptr);
  }
};

TEST(ClosedLinks, AnAddressIsNotFollowedAfterwards) {
  Threads pipe(100);
  pipe.outlet.close();
  EXPECT_TRUE(fails([&] { static_cast<void>(pipe.inlet.drive()); }, ErrorCode::kRankLost, {"rank 1 gave up"}));
  EXPECT_TRUE(untouched(pipe.in));
}

TEST(ClosedLinks, CloseWaitsForTheReader) {
  for (int round = 0; round < 100; ++round) {
    Threads pipe(1 << 20);
    std::atomic<bool> goes{false};
    std::thread receiver([&] {
      goes.store(true, std::memory_order_relaxed);  // relaxed: only to start together
      try {
        static_cast<void>(pipe.inlet.drive());
      } catch (const Error&) {  // it came too late
      }
    });
    while (!goes.load(std::memory_order_relaxed)) continue;
    for (const std::int64_t until = base::now_ns() + round * 1'000; base::now_ns() < until;) base::cpu_relax();
    pipe.outlet.close();
    std::memset(pipe.out.data() + pipe.out.size() / 2, 2, pipe.out.size() / 2);  // ahead of the reader
    receiver.join();
    EXPECT_EQ(std::count(pipe.in.begin(), pipe.in.end(), std::byte{2}), 0) << round;
  }
}

void wait_until(std::int64_t time_ns) {
  while (base::now_ns() < time_ns) base::cpu_relax();
}

// The proxy drives the receiver's call when the sender joins, and the receiver gives up in the middle. The sender
// continues until it is notified. Returns what went wrong.
std::string abort_in_the_middle(Transport transport) {
  constexpr std::ptrdiff_t kPage = 4096;
  CommunicatorOptions options;
  options.transport = transport;
  for (int round = 0; round < 8; ++round) {
    Bytes pages[2] = {Bytes(kMoreThanSocketsHold), Bytes(kMoreThanSocketsHold)};
    const auto body = [&](test::Rank& rank) {
      Bytes& own = pages[rank.comm.rank()];
      const Buffer buffer = rank.device.wrap(own.data(), own.size(), MemoryKind::kPinned);
      const auto call = [&](std::size_t bytes) {
        if (rank.comm.rank() == 0) rank.comm.recv(buffer.slice(0, bytes), 1, rank.stream);
        else rank.comm.send(buffer.slice(0, bytes), 0, rank.stream);
      };
      call(8);  // so that they are connected
      rank.stream.sync();
      const std::int64_t begun = base::now_ns();
      if (rank.comm.rank() == 1) wait_until(begun + 5'000'000);
      try {
        call(own.size());
        wait_until(begun + 7'000'000 + round * 1'000'000);
        if (rank.comm.rank() == 0) rank.comm.abort();
        rank.stream.sync();
      } catch (const Error&) {  // the abort, unless all was done before
      }
      for (std::ptrdiff_t at = kMoreThanSocketsHold - kPage; at >= 0; at -= kPage) own[at] = std::byte{3};
    };
    for (const test::Met& one : test::with_ranks(2, body, options)) {
      if (one.code) return one.text;
    }
    for (std::ptrdiff_t at = 0; at < kMoreThanSocketsHold; at += kPage) {
      if (pages[0][at] != std::byte{3}) return fmt::format("round {}: touched at {}", round, at);
    }
  }
  return "untouched";
}

TEST(AbortedCalls, LeaveTheBufferAlone) { EXPECT_EQ(abort_in_the_middle(Transport::kAuto), "untouched"); }

SLIP_CHILD(AbortedNetCalls, Ranks) {
  test::play([](const transport::LaunchInfo&) { return abort_in_the_middle(Transport::kNet); });
}

// In a process of its own, because a process chooses its network once.
class AbortedNetCalls : public test::NetTest {};
INSTANTIATE_TEST_SUITE_P(Over, AbortedNetCalls, test::quick_nets(), test::net_test_name);
TEST_P(AbortedNetCalls, LeaveTheBufferAlone) {
  const test::RankProcess ranks("AbortedNetCalls.Ranks", test::local_id(), 1, 0, test::net_variables(GetParam()));
  EXPECT_EQ(ranks.report(), "untouched");
}

}  // namespace
}  // namespace slip::test_links
