// What every network must do, tested through the Net interface: sizes, many messages, both directions, processes.
#include <thread>

#include "support/forked.hpp"
#include "support/ranks.hpp"
#include "transport/net_ends.hpp"

namespace slip::test {
namespace {

struct Case {
  const char* name;
  const char* host;
  int sockets;
  std::size_t stripe_bytes;
};

class Nets : public testing::TestWithParam<Case> {
 protected:
  static transport::NetOptions options(int rank = 0) {
    transport::NetOptions result = local_options(rank, GetParam().host);
    result.sockets = GetParam().sockets;
    result.stripe_bytes = GetParam().stripe_bytes;
    return result;
  }
};

TEST_P(Nets, CarryMessagesOfAnySize) {
  Ends ends(options());
  for (const std::size_t size : {0, 1, 7, 999, 1000, 1001, 3000, 4001, 65'536, 1'234'567, 64 << 20}) {
    Bytes from = pattern(size, static_cast<unsigned>(size)), to(size + 64);
    const transport::NetRequest* const send = start(*ends.sender, from);
    ASSERT_EQ(finish(*ends.sender, send, *ends.receiver, start(*ends.receiver, to)), size);
    ASSERT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
    for (std::size_t i = size; i < to.size(); ++i) ASSERT_EQ(to[i], std::byte{}) << "beyond the message";
  }
}

TEST_P(Nets, HaveManyMessagesInFlight) {
  Ends ends(options());
  constexpr std::size_t kCount = 200, kRoom = 20'000;
  Bytes from = pattern(kCount * kRoom, 3), to(kCount * kRoom);
  std::vector<transport::NetRequest*> sends, receives;
  for (std::size_t i = 0; i < kCount; ++i) {
    sends.push_back(start(*ends.sender, std::span(from).subspan(i * kRoom, i * 97 + 1)));
    receives.push_back(start(*ends.receiver, std::span(to).subspan(i * kRoom, kRoom)));
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t moved = finish(*ends.sender, sends[i], *ends.receiver, receives[i]);
    ASSERT_EQ(moved, i * 97 + 1);
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(i * kRoom);
    ASSERT_TRUE(std::equal(begin, begin + static_cast<std::ptrdiff_t>(moved), to.begin() + (begin - from.begin())));
  }
}

TEST_P(Nets, CarryBothDirectionsAtOnce) {
  const auto there = transport::net_tcp().listen(options(0)), back = transport::net_tcp().listen(options(1));
  const transport::NetListener* listeners[2] = {there.get(), back.get()};
  constexpr std::size_t kBytes = 8 << 20;
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto sender = transport::net_tcp().connect(listeners[1 - rank]->handle(), options(rank), long_deadline());
    const auto receiver = accept(rank == 0 ? *there : *back);
    Bytes from = pattern(kBytes, static_cast<unsigned>(rank)), to(kBytes);
    for (int turn = 0; turn < 4; ++turn) {
      const transport::NetRequest* const send = start(*sender, from);
      finish(*sender, send, *receiver, start(*receiver, to));
      EXPECT_EQ(to, pattern(kBytes, static_cast<unsigned>(1 - rank)));
    }
  }));
}

TEST_P(Nets, CarryThousandsOfSmallMessagesInOrder) {
  Ends ends(options());
  constexpr std::uint64_t kCount = 20'000, kSlots = 100;
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::NetConnection& line = rank == 0 ? *ends.receiver : *ends.sender;
    std::vector<std::uint64_t> values(kSlots);
    std::vector<transport::NetRequest*> requests(kSlots);
    for (std::uint64_t i = 0; i < kCount + kSlots; ++i) {
      transport::NetRequest*& slot = requests[i % kSlots];
      if (slot) finish(line, slot);
      if (slot && rank == 0) {
        ASSERT_EQ(values[i % kSlots], i - kSlots);
      }
      slot = nullptr;
      if (i >= kCount) continue;
      if (rank == 1) values[i % kSlots] = i;
      slot = start(line, std::as_writable_bytes(std::span(values).subspan(i % kSlots, 1)));
      ASSERT_NE(slot, nullptr);
    }
  }));
}

TEST_P(Nets, HaveAFixedNumberOfRequests) {
  Ends ends(options());
  Bytes to(64), from(64);
  std::vector<transport::NetRequest*> requests;
  while (transport::NetRequest* request = start(*ends.receiver, to)) requests.push_back(request);
  EXPECT_EQ(requests.size(), transport::kNetMaxRequests);
  const transport::NetRequest* const send = start(*ends.sender, from);
  finish(*ends.sender, send, *ends.receiver, requests[0]);
  EXPECT_NE(start(*ends.receiver, to), nullptr);
}

TEST_P(Nets, JoinProcesses) {
  const auto listener = transport::net_tcp().listen(options(0));
  const transport::NetHandle handle = listener->handle();
  constexpr std::size_t kBytes = 1 << 20;
  const Child child([&] {
    const auto sender = transport::net_tcp().connect(handle, options(1), long_deadline());
    Bytes from = pattern(kBytes, 4);
    for (int i = 0; i < 10; ++i) finish(*sender, start(*sender, from));
    return std::string("sent");
  });
  const auto receiver = accept(*listener);
  EXPECT_EQ(receiver->peer().rank, 1);
  Bytes to(kBytes);
  for (int i = 0; i < 10; ++i) {
    finish(*receiver, start(*receiver, to));
    ASSERT_EQ(to, pattern(kBytes, 4));
  }
  EXPECT_EQ(child.report(), "sent");
}

INSTANTIATE_TEST_SUITE_P(Tcp, Nets,
                         testing::Values(Case{"one_socket", "127.0.0.1", 1, 512 << 10},
                                         Case{"ipv6", "::1", 1, 512 << 10}, Case{"three_sockets", "127.0.0.1", 3, 1000},
                                         Case{"four_sockets", "127.0.0.1", 4, 512 << 10}),
                         [](const auto& which) { return std::string(which.param.name); });

}  // namespace
}  // namespace slip::test
