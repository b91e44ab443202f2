// Connections whose other end is wrong, late, gone or a stranger: an error that names it, never a hang.
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>
#include <thread>

#include "support/errors.hpp"
#include "support/forked.hpp"
#include "transport/net/tcp.hpp"
#include "transport/net_ends.hpp"

namespace slip::test::test_net_failures {
namespace {

class NetFailures : public NetTest {};

transport::SocketAddress address_of(const transport::NetListener& listener) {
  transport::TcpHandle tcp;
  std::memcpy(&tcp, listener.handle().data(), sizeof(tcp));
  return transport::SocketAddress(tcp.address);
}

TEST_P(NetFailures, AMessageTooLargeFailsBothSides) {
#if defined(__SANITIZE_ADDRESS__)
  if (std::string(GetParam()) == "plugin:slip") GTEST_SKIP() << "the error lacks the plug-in's warning in this build";
#endif
  for (const std::size_t size : {100, 64 << 20}) {
    Ends ends(net());
    Memory from(*ends.sender, size), to(*ends.receiver, 99);
    transport::NetRequest* send = ends.sender->isend(from.part(3));
    transport::NetRequest* receive = irecv(*ends.receiver, to.part(3));
    // libfabric does not tell the length of such a message.
    const bool is_known = std::string(GetParam()) != "plugin:libfabric";
    const std::string size_text = (is_known ? std::to_string(size) + " bytes " : "") + "with tag 3";
    EXPECT_TRUE(fails([&] { finish(*ends.sender, nullptr, *ends.receiver, receive); }, ErrorCode::kInvalidValue,
                      {"rank 1 at 127.0.0.1:", size_text, "room for 99"}));
    EXPECT_TRUE(fails(
        [&] {
          // The network may have taken a small message at once: then the next call on the connection gets the error.
          const std::int64_t deadline = long_deadline().at_ns;
          while (base::now_ns() < deadline) static_cast<void>(ends.sender->progress());
        },
        ErrorCode::kInvalidValue, {"rank 0 at 127.0.0.1:", size_text, "room for 99"}));
    EXPECT_TRUE(
        fails([&] { ends.sender->isend(from.part(3)); }, ErrorCode::kInvalidValue, {"room for 99"}));  // and it stays
    EXPECT_TRUE(fails([&] { irecv(*ends.receiver, to.part(3)); }, ErrorCode::kInvalidValue, {"room for 99"}));
    if (!send->done) {
      EXPECT_TRUE(fails([&] { ends.sender->wait(send, long_deadline()); }, ErrorCode::kInvalidValue));
    }
  }
}

TEST_P(NetFailures, AWaitEndsAtItsDeadline) {
  Ends ends(net());
  Memory from(*ends.sender, 64 << 20), to(*ends.receiver, 8);
  EXPECT_TRUE(fails([&] { ends.receiver->wait(irecv(*ends.receiver, to.part(7)), hasty()); }, ErrorCode::kTimeout,
                    {"rank 1 at", "at most 8 bytes with tag 7"}));
  EXPECT_TRUE(fails([&] { ends.sender->wait(ends.sender->isend(from.part(6)), hasty()); }, ErrorCode::kTimeout,
                    {"rank 0 at", "67108864 bytes with tag 6"}));
}

TEST_P(NetFailures, AWaitEndsWhenAborted) {
  Ends ends(net());
  Memory to(*ends.receiver, 8);
  transport::AbortFlag abort;
  transport::NetRequest* request = irecv(*ends.receiver, to.part());
  std::thread aborter([&] { abort.set(); });
  EXPECT_TRUE(fails([&] { ends.receiver->wait(request, {0, &abort}); }, ErrorCode::kAborted, {"rank 1 at"}));
  aborter.join();
  const auto listener = net().listen(local_options(3));
  EXPECT_TRUE(fails([&] { listener->accept({0, &abort}); }, ErrorCode::kAborted, {"rank 3"}));
}

TEST_P(NetFailures, APeerThatClosedIsLost) {
  Ends one(net()), two(net());
  Memory from(*one.sender, 64 << 20), to(*two.receiver, 64);
  transport::NetRequest* send = one.sender->isend(from.part());
  one.receiver.reset();
  EXPECT_TRUE(fails([&] { one.sender->wait(send, long_deadline()); }, ErrorCode::kRankLost, {"rank 0 at 127.0.0.1:"}));
  transport::NetRequest* receive = irecv(*two.receiver, to.part());
  two.sender.reset();
  EXPECT_TRUE(
      fails([&] { two.receiver->wait(receive, long_deadline()); }, ErrorCode::kRankLost, {"rank 1 at 127.0.0.1:"}));
}

TEST_P(NetFailures, WhatWasSentBeforeTheEndStillComes) {
  Ends ends(net());
  Memory from(*ends.sender, 1000), to(*ends.receiver, 1000);
  from.fill(1);
  // The first message may need both ends, which learn to know each other.
  finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, irecv(*ends.receiver, to.part()));
  for (int i = 0; i < 3; ++i) ends.sender->wait(ends.sender->isend(from.part(i)), long_deadline());
  ends.sender.reset();
  for (int i = 0; i < 3; ++i) {
    std::fill(to.bytes.begin(), to.bytes.end(), std::byte{});
    ends.receiver->wait(irecv(*ends.receiver, to.part(i)), long_deadline());
    EXPECT_EQ(from.bytes, to.bytes);
  }
}

// A child that dies after it sent a part of a message.
TEST_P(NetFailures, APeerKilledInTheMiddleOfAMessageIsLost) {
  const auto listener = net().listen(local_options(0));
  const transport::NetHandle handle = listener->handle();
  const Child child([&] {
    const auto sender = net().connect(handle, local_options(1), long_deadline());
    Memory from(*sender, 64 << 20);
    sender->wait(sender->isend(from.part()), long_deadline());
    return std::string("sent");
  });
  const auto receiver = listener->accept(long_deadline());
  Memory to(*receiver, 64 << 20);
  transport::NetRequest* request = irecv(*receiver, to.part());
  while (!receiver->progress()) ASSERT_FALSE(request->done);
  child.signal(SIGKILL);
  EXPECT_TRUE(fails([&] { receiver->wait(request, long_deadline()); }, ErrorCode::kRankLost, {"rank 1 at 127.0.0.1:"}));
}

TEST_P(NetFailures, AStoppedPeerEndsTheWaitAtItsDeadline) {
  const auto listener = net().listen(local_options(0));
  const transport::NetHandle handle = listener->handle();
  const Child child([&] {
    const auto sender = net().connect(handle, local_options(1), long_deadline());
    ::raise(SIGSTOP);
    return std::string();
  });
  const auto receiver = listener->accept(long_deadline());
  Memory to(*receiver, 64);
  EXPECT_TRUE(fails([&] { receiver->wait(irecv(*receiver, to.part()), hasty()); }, ErrorCode::kTimeout, {"rank 1 at"}));
}

TEST_P(NetFailures, StrangersAreTurnedAway) {
  const auto listener = net().listen(local_options(0));
  const transport::SocketAddress address = address_of(*listener);
  const transport::Socket silent = transport::Socket::connect(address, long_deadline());
  const transport::Socket talker = transport::Socket::connect(address, long_deadline());
  talker.send(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n")), long_deadline());
  transport::Socket gone = transport::Socket::connect(address, long_deadline());
  gone.close();
  transport::TcpGreeting wrong{.connection = 1, .stripe_bytes = 1, .index = 0, .sockets = 1};  // and has no code
  const transport::Socket liar = transport::Socket::connect(address, long_deadline());
  liar.send(std::as_bytes(std::span(&wrong, 1)), long_deadline());
  const auto sender = net().connect(listener->handle(), local_options(8), long_deadline());
  const auto receiver = listener->accept(long_deadline());
  EXPECT_EQ(receiver->peer().rank, 8);
  Memory from(*sender, 100), to(*receiver, 100);
  from.fill(2);
  finish(*sender, sender->isend(from.part()), *receiver, irecv(*receiver, to.part()));
  EXPECT_EQ(from.bytes, to.bytes);
  std::byte answer{};
  EXPECT_TRUE(fails([&] { talker.recv({&answer, 1}, long_deadline()); }, ErrorCode::kIo));
  EXPECT_TRUE(fails([&] { liar.recv({&answer, 1}, long_deadline()); }, ErrorCode::kIo));
}

// A greeting with the right secret that makes no sense, and a connection whose sockets do not all arrive.
TEST_P(NetFailures, HalfALineIsNotAccepted) {
  const auto listener = net().listen(local_options(0));
  transport::TcpHandle tcp;
  std::memcpy(&tcp, listener->handle().data(), sizeof(tcp));
  const transport::Socket half = transport::Socket::connect(address_of(*listener), long_deadline());
  transport::TcpGreeting greeting{.connection = 5, .stripe_bytes = 1000, .rank = 2, .index = 0, .sockets = 2};
  greeting.code = greeting.expected_code(local_options(0).key, tcp.salt);
  half.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
  const transport::Socket senseless = transport::Socket::connect(address_of(*listener), long_deadline());
  transport::TcpGreeting none{.connection = 6, .stripe_bytes = 1000, .rank = 2, .index = 3, .sockets = 2};
  none.code = none.expected_code(local_options(0).key, tcp.salt);
  senseless.send(std::as_bytes(std::span(&none, 1)), long_deadline());
  EXPECT_TRUE(fails(
      [&] {
        listener->accept({base::deadline_after(100'000'000), nullptr});
      },
      ErrorCode::kTimeout, {"as rank 0", "1 belong to connections"}));
}

// A stranger that has recorded a greeting and repeats it, here or at another listener, gets no connection.
TEST_P(NetFailures, AGreetingCountsOnce) {
  const auto listener = net().listen(local_options(0)), other = net().listen(local_options(0));
  transport::TcpHandle tcp;
  std::memcpy(&tcp, listener->handle().data(), sizeof(tcp));
  transport::TcpGreeting greeting{.connection = 5, .stripe_bytes = 1000, .rank = 2, .index = 0, .sockets = 1};
  greeting.code = greeting.expected_code(local_options(0).key, tcp.salt);
  const transport::Socket first = transport::Socket::connect(address_of(*listener), long_deadline());
  first.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
  EXPECT_EQ(listener->accept(long_deadline())->peer().rank, 2);
  const transport::Deadline soon{base::deadline_after(100'000'000), nullptr};
  for (transport::NetListener* one : {listener.get(), other.get()}) {
    const transport::Socket again = transport::Socket::connect(address_of(*one), long_deadline());
    again.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
    EXPECT_TRUE(
        fails([&] { one->accept(soon); }, ErrorCode::kTimeout, {"0 sockets connected", "0 belong to connections"}));
  }
}

TEST_P(NetFailures, SendersFindTheirReceiverOrNameIt) {
  auto listener = net().listen(local_options(5));
  const transport::NetHandle handle = listener->handle();
  listener.reset();
  EXPECT_TRUE(fails([&] { net().connect(handle, local_options(1), long_deadline()); }, ErrorCode::kRankLost,
                    {"rank 5", "127.0.0.1:"}));
  EXPECT_TRUE(fails([&] { net().connect(transport::NetHandle{}, local_options(1), long_deadline()); },
                    ErrorCode::kInvalidValue));
}

// The proxy's thread prepares to sleep, too, and must not throw.
TEST_P(NetFailures, WithoutADescriptorLeftAThreadMaySleepAllTheSame) {
  Ends ends(net());
  Memory from(*ends.sender, 8), to(*ends.receiver, 8);
  transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::vector<pollfd> watched;
  std::int64_t sleep_ns = 0;
  std::string error;
  try {
    sleep_ns = ends.receiver->watch(watched);
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, "");
  EXPECT_GT(sleep_ns, 0);
  finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, receive);
}

// A forked child destroys the connections that it inherited. They belong to the parent, which goes on using them.
TEST_P(NetFailures, AForkedChildLeavesTheConnectionsToItsParent) {
  Ends ends(net());
  Memory from(*ends.sender, 1000), to(*ends.receiver, 1000);
  from.fill(9);
  finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, irecv(*ends.receiver, to.part()));
  const Child child([&] {
    from.registered = nullptr;
    ends.sender = nullptr;
    ends.receiver = nullptr;
    to.registered = nullptr;
    return std::string("left");
  });
  EXPECT_EQ(child.report(), "left");
  for (unsigned round = 0; round < 3; ++round) {
    from.fill(round);
    transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
    const std::int64_t until = base::deadline_after(20'000'000);  // a goodbye of the child would arrive
    while (base::now_ns() < until) ASSERT_FALSE(ends.receiver->test(receive));
    finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, receive);
    EXPECT_EQ(from.bytes, to.bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, NetFailures, every_net(), net_test_name);

// The socket beside a connection over UCX, through a relay that adds bytes to what the sender writes.
class Relay {
 public:
  explicit Relay(const transport::NetListener& listener) : to_(address_of(listener)), handle_(listener.handle()) {
    transport::TcpHandle tcp;
    std::memcpy(&tcp, handle_.data(), sizeof(tcp));
    tcp.address = place_.local().wire();
    std::memcpy(handle_.data(), &tcp, sizeof(tcp));
    thread_ = std::thread([this] { forward(); });
  }
  ~Relay() { thread_.join(); }  // after the sender has closed its end
  const transport::NetHandle& handle() const { return handle_; }
  void add(std::span<const std::byte> bytes) { out_.send(bytes, long_deadline()); }  // after accept()
  void end() {  // the receiver sees the end of the socket; what the sender writes later is lost
    ended_ = true;
    out_.finish_sending();
  }

 private:
  bool pass(const transport::Socket& from, const transport::Socket& to) const {
    std::array<std::byte, 4096> bytes;
    const transport::Socket::Moved moved = from.try_recv(bytes);
    if (moved.bytes > 0 && !ended_) to.send(std::span(bytes).first(moved.bytes), long_deadline());
    return !moved.ended;
  }
  void forward() {
    transport::Socket in = place_.accept(long_deadline());
    out_ = transport::Socket::connect(to_, long_deadline());
    bool open = true;
    while (open) {
      pollfd watched[] = {{in.descriptor(), POLLIN, 0}, {out_.descriptor(), POLLIN, 0}};
      transport::wait_for_any(std::span(watched), 1'000'000'000);
      open = pass(in, out_) && pass(out_, in);
    }
    out_.close();
  }

  const transport::Socket place_ = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
  const transport::SocketAddress to_;
  transport::NetHandle handle_;
  transport::Socket out_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

struct Goodbye {
  std::uint32_t mark = 0x75637867, reserved = 0;
  std::uint64_t messages = 2;
};

// A goodbye overtakes the last message. The receiver has to wait for that, although nothing moves for a while.
TEST(UcxFailures, AGoodbyeMayOvertakeTheLastMessage) {
  const NamedNet ucx = net_named("ucx");
  if (!ucx.net) GTEST_SKIP() << ucx.problem;
  const auto listener = ucx.net->listen(local_options(0));
  Relay relay(*listener);
  auto sender = ucx.net->connect(relay.handle(), local_options(1), long_deadline());
  const auto receiver = listener->accept(long_deadline());
  Memory from(*sender, 8), to(*receiver, 8);
  from.fill(3);
  const transport::NetPart empty;
  finish(*sender, sender->isend(empty), *receiver, irecv(*receiver, empty));
  const Goodbye goodbye;
  relay.add(std::as_bytes(std::span(&goodbye, 1)));
  transport::NetRequest* const receive = irecv(*receiver, to.part());
  const std::int64_t until = base::deadline_after(300'000'000);  // the network delivers nothing for so long
  while (base::now_ns() < until) ASSERT_FALSE(receiver->test(receive));
  finish(*sender, sender->isend(from.part()), *receiver, receive);
  EXPECT_EQ(from.bytes, to.bytes);
  // No more messages follow.
  transport::NetRequest* const another = irecv(*receiver, to.part());
  EXPECT_TRUE(fails([&] { receiver->wait(another, long_deadline()); }, ErrorCode::kRankLost, {"rank 1 at", "is gone"}));
  sender = nullptr;
}

// The socket has ended, too, so it is always readable. The receiver must not use a core while it waits.
TEST(UcxFailures, AReceiverSleepsUntilTheAnnouncedMessagesArrive) {
  const NamedNet ucx = net_named("ucx");
  if (!ucx.net) GTEST_SKIP() << ucx.problem;
  const auto listener = ucx.net->listen(local_options(0));
  Relay relay(*listener);
  auto sender = ucx.net->connect(relay.handle(), local_options(1), long_deadline());
  const auto receiver = listener->accept(long_deadline());
  const transport::NetPart empty;
  finish(*sender, sender->isend(empty), *receiver, irecv(*receiver, empty));
  const Goodbye goodbye;
  relay.add(std::as_bytes(std::span(&goodbye, 1)));
  relay.end();
  Memory to(*receiver, 8);
  transport::NetRequest* const receive = irecv(*receiver, to.part());
  const auto cpu_ns = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  };
  const std::int64_t begun = cpu_ns();
  constexpr std::int64_t kWaitNs = 400'000'000;
  const transport::Deadline deadline{base::deadline_after(kWaitNs), nullptr};
  EXPECT_TRUE(fails([&] { receiver->wait(receive, deadline); }, ErrorCode::kTimeout, {"rank 1 at"}));
  EXPECT_LT(cpu_ns() - begun, kWaitNs / 4);
  sender = nullptr;
}

// UCX's thread does not exist in a forked child. If the parent has no connections any more, the child may use UCX.
TEST(UcxFailures, AChildForkedBesideConnectionsIsRefused) {
  const NamedNet ucx = net_named("ucx");
  if (!ucx.net) GTEST_SKIP() << ucx.problem;
  const auto listener = ucx.net->listen(local_options(2));
  const transport::NetHandle handle = listener->handle();
  const auto connect = [&] {
    static_cast<void>(ucx.net->connect(handle, local_options(3), long_deadline()));
    return std::string("connected");
  };
  {
    const Ends ends(*ucx.net);
    const Child child(connect);
    const std::string report = child.report();
    EXPECT_NE(report.find("rank 3 cannot use UCX"), std::string::npos) << report;
    EXPECT_NE(report.find("was forked from one that has connections over UCX"), std::string::npos) << report;
  }
  const Child later(connect);
  EXPECT_EQ(later.report(), "connected");
}

TEST(TcpFailures, AConnectionHasALimitOfSockets) {
  const auto listener = transport::net_tcp().listen(local_options(5));
  transport::NetOptions many = local_options(1);
  many.sockets = 17;
  EXPECT_TRUE(fails([&] { transport::net_tcp().connect(listener->handle(), many, long_deadline()); },
                    ErrorCode::kInvalidValue, {"17 sockets"}));
}

// accept(2) fails with EINVAL at a socket that no longer listens: the caller learns it at once, not at its deadline.
TEST(TcpFailures, AListenerThatCannotAcceptIsNamed) {
  const auto listener = transport::net_tcp().listen(local_options(5));
  const std::string address = address_of(*listener).text();
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {  // find the listener's descriptor
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    sockaddr_storage at{};
    socklen_t length = sizeof(at);
    if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &length) != 0) continue;
    const bool found = transport::SocketAddress(reinterpret_cast<const sockaddr*>(&at), length).text() == address;
    ASSERT_TRUE(!found || ::shutdown(descriptor, SHUT_RDWR) == 0);
  }
  EXPECT_TRUE(fails([&] { static_cast<void>(listener->accept(long_deadline())); }, ErrorCode::kIo,
                    {"cannot accept at " + address, std::strerror(EINVAL)}));
}

// The receiver's FIN may be visible before the kernel's notification that it no longer reads the message.
TEST(TcpFailures, AFinMayOvertakeTheZeroCopyNotification) {
  const auto set = [](const transport::Socket& socket, int option, int bytes) {
    ASSERT_EQ(::setsockopt(socket.descriptor(), SOL_SOCKET, option, &bytes, sizeof(bytes)), 0);
  };
  const transport::Socket place = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
  set(place, SO_RCVBUF, 16 << 10);  // the receiver's kernel takes only a part: the rest waits in the sender's kernel
  transport::Greeted greeted{{0, "127.0.0.1"}, {}};
  greeted.sockets.push_back(transport::Socket::connect(place.local(), long_deadline()));
  const transport::Socket receiver = place.accept(long_deadline());
  set(greeted.sockets[0], SO_SNDBUF, 256 << 10);
  const int descriptor = greeted.sockets[0].descriptor();
  transport::NetOptions options = local_options(1);
  options.zero_copy_from = 1;
  const auto sender = transport::make_tcp_sender(std::move(greeted), options, false);
  Memory from(*sender, 64 << 10);
  from.fill(5);
  transport::NetRequest* const request = sender->isend(from.part(2));
  if (request->done) GTEST_SKIP() << "the kernel copies the message although MSG_ZEROCOPY is set";
  receiver.finish_sending();
  ASSERT_EQ(transport::wait_for(descriptor, POLLIN, long_deadline()), transport::Waited::kReady);
  for (int i = 0; i < 3; ++i) ASSERT_NO_THROW(static_cast<void>(sender->progress()));
  EXPECT_FALSE(request->done);
  std::vector<pollfd> watched;
  static_cast<void>(sender->watch(watched));
  ASSERT_EQ(watched.size(), 1U);
  EXPECT_EQ(watched[0].events & POLLIN, 0) << "a sleeping thread would wake at once";
  std::vector<std::byte> bytes(sizeof(transport::TcpHeader) + from.bytes.size());
  receiver.recv(bytes, long_deadline());
  EXPECT_TRUE(std::equal(from.bytes.begin(), from.bytes.end(), bytes.begin() + sizeof(transport::TcpHeader)));
  sender->wait(request, long_deadline());
}

TEST(TcpFailures, GarbageAfterTheGreetingIsNoMessage) {
  const auto listener = transport::net_tcp().listen(local_options(0));
  transport::TcpHandle tcp;
  std::memcpy(&tcp, listener->handle().data(), sizeof(tcp));
  const transport::Socket there = transport::Socket::connect(address_of(*listener), long_deadline());
  transport::TcpGreeting greeting{.connection = 5, .stripe_bytes = 1000, .rank = 2, .index = 0, .sockets = 1};
  greeting.code = greeting.expected_code(local_options(0).key, tcp.salt);
  there.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
  there.send(std::as_bytes(std::span("0123456789abcdefghij")), long_deadline());
  const auto receiver = listener->accept(long_deadline());
  Memory to(*receiver, 64);
  EXPECT_TRUE(
      fails([&] { receiver->wait(irecv(*receiver, to.part()), long_deadline()); }, ErrorCode::kIo, {"rank 2 at"}));
}

}  // namespace
}  // namespace slip::test::test_net_failures
