// What every network must do, tested through the Net interface: sizes, tags, many messages, both directions, processes.
#include <future>
#include <thread>

#include "support/errors.hpp"
#include "support/forked.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"
#include "transport/net_ends.hpp"

namespace slip::test::test_net {
namespace {

struct Case {
  const char* network;
  const char* name;
  const char* host;
  int sockets;
  std::size_t stripe_bytes;
};

class Nets : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const NamedNet named = net_named(GetParam().network);
    if (!named.net) GTEST_SKIP() << named.problem;
    net_ = named.net;
  }
  const transport::Net& net() const { return *net_; }
  static transport::NetOptions options(int rank = 0) {
    transport::NetOptions result = local_options(rank, GetParam().host);
    result.sockets = GetParam().sockets;
    result.stripe_bytes = GetParam().stripe_bytes;
    return result;
  }

 private:
  const transport::Net* net_ = nullptr;
};

TEST_P(Nets, CarryMessagesOfAnySize) {
  Ends ends(net(), options());
  constexpr std::size_t kLarge = (64U << 20) / kShare;
  for (const std::size_t size : {0UL, 1UL, 7UL, 999UL, 1000UL, 1001UL, 3000UL, 4001UL, 65'536UL, 1'234'567UL, kLarge}) {
    Memory from(*ends.sender, size), to(*ends.receiver, size + 64);
    from.fill(static_cast<unsigned>(size));
    std::size_t moved = 77;
    finish(*ends.sender, ends.sender->isend(from.part(5)), *ends.receiver, irecv(*ends.receiver, to.part(5)),
           std::span(&moved, 1));
    ASSERT_EQ(moved, size);
    ASSERT_TRUE(std::equal(from.bytes.begin(), from.bytes.end(), to.bytes.begin()));
    for (std::size_t i = size; i < to.bytes.size(); ++i) ASSERT_EQ(to.bytes[i], std::byte{}) << "beyond the message";
  }
}

TEST_P(Nets, HaveManyMessagesInFlight) {
  Ends ends(net(), options());
  constexpr std::size_t kCount = 200, kRoom = 20'000;
  Memory from(*ends.sender, kCount * kRoom), to(*ends.receiver, kCount * kRoom);
  from.fill(3);
  std::vector<transport::NetRequest*> sends, receives;
  for (std::size_t i = 0; i < kCount; ++i) {
    sends.push_back(ends.sender->isend(from.part(0, i * kRoom, i * 97 + 1)));
    receives.push_back(irecv(*ends.receiver, to.part(0, i * kRoom, kRoom)));
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    std::size_t moved = 0;
    finish(*ends.sender, sends[i], *ends.receiver, receives[i], std::span(&moved, 1));
    ASSERT_EQ(moved, i * 97 + 1);
    const auto begin = from.bytes.begin() + static_cast<std::ptrdiff_t>(i * kRoom);
    ASSERT_TRUE(
        std::equal(begin, begin + static_cast<std::ptrdiff_t>(moved), to.bytes.begin() + (begin - from.bytes.begin())));
  }
}

TEST_P(Nets, FindTheReceiveByTheTag) {
  Ends ends(net(), options());
  constexpr std::size_t kRoom = 3000;
  Memory from(*ends.sender, 16 * kRoom), to(*ends.receiver, 16 * kRoom);
  from.fill(9);
  // Two receives of 8 parts each, with tags in the opposite order of the sends; tag t comes twice, 8 apart.
  std::vector<transport::NetRequest*> receives, sends;
  for (std::size_t group = 0; group < 2; ++group) {
    std::vector<transport::NetPart> parts;
    for (std::size_t i = 0; i < 8; ++i)
      parts.push_back(to.part(static_cast<int>(7 - i), (group * 8 + 7 - i) * kRoom, kRoom));
    receives.push_back(ends.receiver->irecv(parts));
  }
  for (std::size_t i = 0; i < 16; ++i)
    sends.push_back(ends.sender->isend(from.part(static_cast<int>(i % 8), i * kRoom, kRoom - i)));
  for (std::size_t i = 0; i < 16; ++i) finish(*ends.sender, sends[i], *ends.receiver, nullptr);
  for (std::size_t group = 0; group < 2; ++group) {
    std::array<std::size_t, 8> moved{};
    finish(*ends.sender, nullptr, *ends.receiver, receives[group], moved);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(moved[i], kRoom - (group * 8 + 7 - i));
  }
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_TRUE(std::equal(from.bytes.begin() + static_cast<std::ptrdiff_t>(i * kRoom),
                           from.bytes.begin() + static_cast<std::ptrdiff_t>(i * kRoom + kRoom - i),
                           to.bytes.begin() + static_cast<std::ptrdiff_t>(i * kRoom)));
}

TEST_P(Nets, KeepMessagesThatAreAskedForLater) {
  if (std::string(GetParam().network).starts_with("plugin:"))
    GTEST_SKIP() << "plug-ins match messages in their order: tags choose among the parts of one receive only";
  Ends ends(net(), options());
  constexpr std::size_t kLarge = 3 << 20;
  Memory from(*ends.sender, kLarge), to(*ends.receiver, kLarge);
  from.fill(1);
  transport::NetRequest* large = ends.sender->isend(from.part(1));
  transport::NetRequest* other = ends.sender->isend(from.part(2, 100, 50));
  transport::NetRequest* last = ends.sender->isend(from.part(1, 200, 60));
  // Tag 2 is behind 3 MiB with tag 1 that nobody asked for.
  finish(*ends.sender, other, *ends.receiver, irecv(*ends.receiver, to.part(2, 0, 50)));
  EXPECT_TRUE(std::equal(to.bytes.begin(), to.bytes.begin() + 50, from.bytes.begin() + 100));
  finish(*ends.sender, large, *ends.receiver, irecv(*ends.receiver, to.part(1)));
  EXPECT_EQ(from.bytes, to.bytes);
  std::size_t moved = 0;
  finish(*ends.sender, last, *ends.receiver, irecv(*ends.receiver, to.part(1)), std::span(&moved, 1));
  EXPECT_EQ(moved, 60U);
  EXPECT_TRUE(std::equal(to.bytes.begin(), to.bytes.begin() + 60, from.bytes.begin() + 200));
}

TEST_P(Nets, CarryBothDirectionsAtOnce) {
  const auto there = net().listen(options(0)), back = net().listen(options(1));
  const transport::NetListener* listeners[2] = {there.get(), back.get()};
  constexpr std::size_t kBytes = 8 << 20;
  expect_no_errors(as_ranks(2, [&](int rank) {
    const auto sender = net().connect(listeners[1 - rank]->handle(), options(rank), long_deadline());
    const auto receiver = (rank == 0 ? there : back)->accept(long_deadline());
    Memory from(*sender, kBytes), to(*receiver, kBytes), expected(*sender, kBytes);
    from.fill(static_cast<unsigned>(rank));
    expected.fill(static_cast<unsigned>(1 - rank));
    for (int turn = 0; turn < 4; ++turn) {
      finish(*sender, sender->isend(from.part()), *receiver, irecv(*receiver, to.part()));
      EXPECT_EQ(to.bytes, expected.bytes);
    }
  }));
}

TEST_P(Nets, CarryThousandsOfSmallMessagesInOrder) {
  Ends ends(net(), options());
  constexpr std::uint64_t kCount = 20'000, kSlots = 100;
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::NetConnection& line = rank == 0 ? static_cast<transport::NetConnection&>(*ends.receiver) : *ends.sender;
    std::vector<std::uint64_t> values(kSlots);
    const auto memory = line.register_memory(std::as_writable_bytes(std::span(values)));
    std::vector<transport::NetRequest*> requests(kSlots);
    for (std::uint64_t i = 0; i < kCount + kSlots; ++i) {
      transport::NetRequest*& slot = requests[i % kSlots];
      if (slot) line.wait(slot, long_deadline());
      if (slot && rank == 0) {
        ASSERT_EQ(values[i % kSlots], i - kSlots);
      }
      slot = nullptr;
      if (i >= kCount) continue;
      const transport::NetPart part{reinterpret_cast<std::byte*>(&values[i % kSlots]), sizeof(i), 0, memory.get()};
      if (rank == 1) values[i % kSlots] = i;
      slot = rank == 1 ? ends.sender->isend(part) : irecv(*ends.receiver, part);
      ASSERT_NE(slot, nullptr);
    }
  }));
}

// A receiver that has all its messages does not drive the connection any more. The sends are done all the same.
TEST_P(Nets, FinishSendsThoughTheReceiverRests) {
  constexpr int kStep = kShare == 1 ? 1 : 6;
  for (int turn = 0; turn < 20; turn += kStep) {
    Ends ends(net(), options());
    const std::size_t size = std::size_t{1} << (turn + 2);  // up to 8 MiB
    std::promise<void> sent;
    expect_no_errors(as_ranks(2, [&](int rank) {
      if (rank == 0) {
        Memory to(*ends.receiver, size);
        for (int i = 0; i < 3; ++i) ends.receiver->wait(irecv(*ends.receiver, to.part()), long_deadline());
        sent.get_future().wait();
      } else {
        Memory from(*ends.sender, size);
        std::vector<transport::NetRequest*> sends;
        for (int i = 0; i < 3; ++i) sends.push_back(ends.sender->isend(from.part()));
        for (transport::NetRequest* one : sends) ends.sender->wait(one, long_deadline());
        sent.set_value();
      }
    }));
  }
}

TEST_P(Nets, HaveAFixedPoolOfRequests) {
  Ends ends(net(), options());
  Memory to(*ends.receiver, 64);
  std::vector<transport::NetRequest*> requests;
  while (transport::NetRequest* request = irecv(*ends.receiver, to.part())) requests.push_back(request);
  EXPECT_EQ(requests.size(), transport::kNetMaxRequests);
  Memory from(*ends.sender, 64);
  finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, requests[0]);
  EXPECT_NE(irecv(*ends.receiver, to.part()), nullptr);
}

TEST_P(Nets, FlushWhatWasReceived) {
  Ends ends(net(), options());
  Memory from(*ends.sender, 64), to(*ends.receiver, 64);
  from.fill(3);
  finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, irecv(*ends.receiver, to.part()));
  const transport::NetPart part = to.part();
  finish(*ends.sender, nullptr, *ends.receiver, ends.receiver->flush(std::span(&part, 1)));
  EXPECT_EQ(to.bytes, from.bytes);
}

TEST_P(Nets, TakeOnlyRegisteredMemory) {
  Ends ends(net(), options());
  Memory from(*ends.sender, 64), to(*ends.receiver, 64);
  std::byte stranger{};
  EXPECT_TRUE(fails(
      [&] {
        ends.sender->isend({&stranger, 1, 4, nullptr});
      },
      ErrorCode::kInvalidValue, {"rank 0 at", "tag 4"}));
  EXPECT_TRUE(fails([&] { ends.sender->isend(from.part(0, 1, 64)); }, ErrorCode::kInvalidValue, {"64 bytes"}));
  EXPECT_TRUE(fails(
      [&] {
        irecv(*ends.receiver, {&stranger, 1, 4, to.registered.get()});
      },
      ErrorCode::kInvalidValue, {"rank 1 at"}));
  EXPECT_TRUE(fails([&] { ends.receiver->irecv({}); }, ErrorCode::kInvalidValue, {"0 parts"}));
  finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver,
         irecv(*ends.receiver, to.part()));  // the connection still works
}

TEST_P(Nets, JoinProcesses) {
  const auto listener = net().listen(options(0));
  const transport::NetHandle handle = listener->handle();
  constexpr std::size_t kBytes = 1 << 20;
  const Child child([&] {
    const auto sender = net().connect(handle, options(1), long_deadline());
    Memory from(*sender, kBytes);
    from.fill(4);
    for (int i = 0; i < 10; ++i) sender->wait(sender->isend(from.part(i)), long_deadline());
    return std::string("sent");
  });
  const auto receiver = listener->accept(long_deadline());
  EXPECT_EQ(receiver->peer().rank, 1);
  Memory to(*receiver, kBytes), expected(*receiver, kBytes);
  expected.fill(4);
  for (int i = 0; i < 10; ++i) {
    receiver->wait(irecv(*receiver, to.part(i)), long_deadline());
    ASSERT_EQ(to.bytes, expected.bytes);
  }
  EXPECT_EQ(child.report(), "sent");
}

INSTANTIATE_TEST_SUITE_P(Tcp, Nets,
                         testing::Values(Case{"tcp", "one_socket", "127.0.0.1", 1, 512 << 10},
                                         Case{"tcp", "ipv6", "::1", 1, 512 << 10},
                                         Case{"tcp", "three_sockets", "127.0.0.1", 3, 1000},
                                         Case{"tcp", "four_sockets", "127.0.0.1", 4, 512 << 10}),
                         [](const auto& which) { return std::string(which.param.name); });
INSTANTIATE_TEST_SUITE_P(Ucx, Nets,
                         testing::Values(Case{"ucx", "ipv4", "127.0.0.1", 1, 512 << 10},
                                         Case{"ucx", "ipv6", "::1", 1, 512 << 10}),
                         [](const auto& which) { return std::string(which.param.name); });
INSTANTIATE_TEST_SUITE_P(Plugins, Nets,
                         testing::Values(Case{"plugin:v8", "version_8", "127.0.0.1", 1, 512 << 10},
                                         Case{"plugin:v9", "version_9", "127.0.0.1", 1, 512 << 10},
                                         Case{"plugin:v10", "version_10", "::1", 1, 512 << 10},
                                         Case{"plugin:slip", "version_11", "127.0.0.1", 1, 512 << 10},
                                         Case{"plugin:libfabric", "libfabric", "127.0.0.1", 1, 512 << 10}),
                         [](const auto& which) { return std::string(which.param.name); });

}  // namespace
}  // namespace slip::test::test_net
