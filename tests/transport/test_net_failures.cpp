// Connections whose other end is wrong, gone or a stranger: an error that names it, never a hang.
#include "support/errors.hpp"
#include "support/forked.hpp"
#include "transport/net/tcp.hpp"
#include "transport/net_ends.hpp"

namespace slip::test {
namespace {

transport::SocketAddress address_of(const transport::NetListener& listener) {
  transport::TcpHandle told;
  std::memcpy(&told, listener.handle().data(), sizeof(told));
  return transport::SocketAddress(told.address);
}

TEST(NetFailures, AMessageTooLargeFailsBothSides) {
  for (const std::size_t size : {100, 64 << 20}) {
    Ends ends;
    Bytes from(size), to(99);
    transport::NetRequest* send = start(*ends.sender, from);
    transport::NetRequest* receive = start(*ends.receiver, to);
    EXPECT_TRUE(fails([&] { finish(*ends.receiver, receive); }, Code::kInvalidValue,
                      {"rank 1 at 127.0.0.1:", std::to_string(size) + " bytes", "room for 99"}));
    EXPECT_TRUE(fails(
        [&] {
          // The kernel took the small message at once, so the next call that uses the connection gets the error.
          const std::int64_t deadline = long_deadline().at_ns;
          while (base::now_ns() < deadline) static_cast<void>(ends.sender->progress());
        },
        Code::kInvalidValue, {"rank 0 at 127.0.0.1:", std::to_string(size) + " bytes", "room for 99"}));
    EXPECT_TRUE(fails([&] { start(*ends.sender, from); }, Code::kInvalidValue, {"room for 99"}));  // and it stays
    EXPECT_TRUE(fails([&] { start(*ends.receiver, to); }, Code::kInvalidValue, {"room for 99"}));
    if (!send->done) {
      EXPECT_TRUE(fails([&] { finish(*ends.sender, send); }, Code::kInvalidValue));
    }
  }
}

TEST(NetFailures, APeerThatClosedIsLost) {
  Ends one, two;
  Bytes from(64 << 20), to(64);
  transport::NetRequest* send = start(*one.sender, from);
  one.receiver.reset();
  EXPECT_TRUE(fails([&] { finish(*one.sender, send); }, Code::kRankLost, {"rank 0 at 127.0.0.1:"}));
  transport::NetRequest* receive = start(*two.receiver, to);
  two.sender.reset();
  EXPECT_TRUE(fails([&] { finish(*two.receiver, receive); }, Code::kRankLost, {"rank 1 at 127.0.0.1:"}));
}

TEST(NetFailures, WhatWasSentBeforeTheEndStillComes) {
  Ends ends;
  Bytes from = pattern(1000, 1);
  for (int i = 0; i < 3; ++i) finish(*ends.sender, start(*ends.sender, from));
  ends.sender.reset();
  for (int i = 0; i < 3; ++i) {
    Bytes to(1000);
    finish(*ends.receiver, start(*ends.receiver, to));
    EXPECT_EQ(from, to);
  }
}

// A child that dies after it sent a part of a message.
TEST(NetFailures, APeerKilledInTheMiddleOfAMessageIsLost) {
  const auto listener = transport::net_tcp().listen(local_options(0));
  const transport::NetHandle handle = listener->handle();
  const Child child([&] {
    const auto sender = transport::net_tcp().connect(handle, local_options(1), long_deadline());
    Bytes from(64 << 20);
    finish(*sender, start(*sender, from));
    return std::string("sent");
  });
  const auto receiver = accept(*listener);
  Bytes to(64 << 20);
  transport::NetRequest* request = start(*receiver, to);
  while (!receiver->progress()) ASSERT_FALSE(request->done);
  child.signal(SIGKILL);
  EXPECT_TRUE(fails([&] { finish(*receiver, request); }, Code::kRankLost, {"rank 1 at 127.0.0.1:"}));
}

TEST(NetFailures, StrangersAreTurnedAway) {
  const auto listener = transport::net_tcp().listen(local_options(0));
  const transport::SocketAddress address = address_of(*listener);
  const transport::Socket silent = transport::Socket::connect(address, long_deadline());
  const transport::Socket talker = transport::Socket::connect(address, long_deadline());
  talker.send(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n")), long_deadline());
  transport::Socket gone = transport::Socket::connect(address, long_deadline());
  gone.close();
  transport::TcpGreeting wrong{.connection = 1, .stripe_bytes = 1, .index = 0, .sockets = 1};  // and has no code
  const transport::Socket liar = transport::Socket::connect(address, long_deadline());
  liar.send(std::as_bytes(std::span(&wrong, 1)), long_deadline());
  const auto sender = transport::net_tcp().connect(listener->handle(), local_options(8), long_deadline());
  const auto receiver = accept(*listener);
  EXPECT_EQ(receiver->peer().rank, 8);
  Bytes from = pattern(100, 2), to(100);
  const transport::NetRequest* const send = start(*sender, from);
  finish(*sender, send, *receiver, start(*receiver, to));
  EXPECT_EQ(from, to);
  std::byte answer{};
  EXPECT_TRUE(fails([&] { talker.recv({&answer, 1}, long_deadline()); }, Code::kIo));
  EXPECT_TRUE(fails([&] { liar.recv({&answer, 1}, long_deadline()); }, Code::kIo));
}

// A greeting with the right secret that makes no sense, and a connection whose sockets do not all arrive.
TEST(NetFailures, HalfALineIsNotAccepted) {
  const auto listener = transport::net_tcp().listen(local_options(0));
  transport::TcpHandle told;
  std::memcpy(&told, listener->handle().data(), sizeof(told));
  const transport::Socket half = transport::Socket::connect(address_of(*listener), long_deadline());
  transport::TcpGreeting greeting{.connection = 5, .stripe_bytes = 1000, .rank = 2, .index = 0, .sockets = 2};
  greeting.code = greeting.expected_code(local_options(0).key, told.salt);
  half.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
  const transport::Socket senseless = transport::Socket::connect(address_of(*listener), long_deadline());
  transport::TcpGreeting none{.connection = 6, .stripe_bytes = 1000, .rank = 2, .index = 3, .sockets = 2};
  none.code = none.expected_code(local_options(0).key, told.salt);
  senseless.send(std::as_bytes(std::span(&none, 1)), long_deadline());
  // The next connection is accepted, so the listener has read the greetings before it.
  const auto sender = transport::net_tcp().connect(listener->handle(), local_options(8), long_deadline());
  EXPECT_EQ(accept(*listener)->peer().rank, 8);
  EXPECT_EQ(listener->accept(), nullptr);
}

// A stranger that has recorded a greeting and repeats it, here or at another listener, gets no connection.
TEST(NetFailures, AGreetingCountsOnce) {
  const auto listener = transport::net_tcp().listen(local_options(0)),
             other = transport::net_tcp().listen(local_options(0));
  transport::TcpHandle told;
  std::memcpy(&told, listener->handle().data(), sizeof(told));
  transport::TcpGreeting greeting{.connection = 5, .stripe_bytes = 1000, .rank = 2, .index = 0, .sockets = 1};
  greeting.code = greeting.expected_code(local_options(0).key, told.salt);
  const transport::Socket first = transport::Socket::connect(address_of(*listener), long_deadline());
  first.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
  EXPECT_EQ(accept(*listener)->peer().rank, 2);
  for (transport::NetListener* one : {listener.get(), other.get()}) {
    const transport::Socket again = transport::Socket::connect(address_of(*one), long_deadline());
    again.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
    const auto sender = transport::net_tcp().connect(one->handle(), local_options(8), long_deadline());
    EXPECT_EQ(accept(*one)->peer().rank, 8);  // it came after the greeting, which the listener has read by now
    EXPECT_EQ(one->accept(), nullptr);
    std::byte answer{};
    EXPECT_TRUE(fails([&] { again.recv({&answer, 1}, long_deadline()); }, Code::kIo));
  }
}

TEST(NetFailures, SendersFindTheirReceiverOrSayWhoItIs) {
  auto listener = transport::net_tcp().listen(local_options(5));
  const transport::NetHandle handle = listener->handle();
  listener.reset();
  EXPECT_TRUE(fails([&] { transport::net_tcp().connect(handle, local_options(1), long_deadline()); }, Code::kRankLost,
                    {"rank 5", "127.0.0.1:"}));
  EXPECT_TRUE(fails([&] { transport::net_tcp().connect(transport::NetHandle{}, local_options(1), long_deadline()); },
                    Code::kInvalidValue));
  transport::NetOptions many = local_options(1);
  many.sockets = 17;
  EXPECT_TRUE(
      fails([&] { transport::net_tcp().connect(handle, many, long_deadline()); }, Code::kInvalidValue, {"17 sockets"}));
}

TEST(NetFailures, GarbageAfterTheGreetingIsNoMessage) {
  const auto listener = transport::net_tcp().listen(local_options(0));
  transport::TcpHandle told;
  std::memcpy(&told, listener->handle().data(), sizeof(told));
  const transport::Socket there = transport::Socket::connect(address_of(*listener), long_deadline());
  transport::TcpGreeting greeting{.connection = 5, .stripe_bytes = 1000, .rank = 2, .index = 0, .sockets = 1};
  greeting.code = greeting.expected_code(local_options(0).key, told.salt);
  there.send(std::as_bytes(std::span(&greeting, 1)), long_deadline());
  there.send(std::as_bytes(std::span("0123456789abcdefghij")), long_deadline());
  const auto receiver = accept(*listener);
  Bytes to(64);
  EXPECT_TRUE(fails([&] { finish(*receiver, start(*receiver, to)); }, Code::kIo, {"rank 2 at"}));
}

}  // namespace
}  // namespace slip::test
