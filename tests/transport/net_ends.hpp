// Both ends of a network connection in one test, bytes with a pattern to send over it, and waits for requests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "transport/net/net.hpp"
#include "transport/net/proxy.hpp"

namespace slip::test {

inline transport::Deadline long_deadline() { return {base::deadline_after(60'000'000'000), nullptr}; }

inline transport::NetOptions local_options(int rank, const char* host = "127.0.0.1") {
  transport::NetOptions options;
  options.rank = rank;
  options.host = host;
  return options;
}

// Polls until it returns something, for at most a minute; then returns null.
template <class Poll>
auto poll_for(const Poll& poll) {
  const std::int64_t deadline = long_deadline().at_ns;
  auto found = poll();
  for (; !found && base::now_ns() < deadline; found = poll()) base::yield_thread();
  return found;
}

inline std::unique_ptr<transport::NetConnection> accept(transport::NetListener& listener) {
  return poll_for([&] { return listener.accept(); });
}

// Rank 1 sends to rank 0.
struct Ends {
  std::unique_ptr<transport::NetConnection> sender, receiver;

  explicit Ends(transport::NetOptions options = local_options(0)) {
    const auto listener = transport::net_tcp().listen(options);
    options.rank = 1;
    sender = transport::net_tcp().connect(listener->handle(), options, long_deadline());
    receiver = accept(*listener);
  }
};

using Bytes = std::vector<std::byte>;

inline Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return bytes;
}

inline transport::NetRequest* start(transport::NetConnection& line, std::span<std::byte> bytes) {
  return line.start(bytes, false);
}

// Drives the connection until the request is done, and returns the length of the message. Throws the connection's
// error.
inline std::size_t finish(transport::NetConnection& line, const transport::NetRequest* request) {
  EXPECT_TRUE(poll_for([&] { return request->done || (static_cast<void>(line.progress()), request->done); }));
  return request->moved;
}

// Drives both ends from one thread until both requests are done. Returns the length of the second message.
inline std::size_t finish(transport::NetConnection& one, const transport::NetRequest* ones,
                          transport::NetConnection& two, const transport::NetRequest* twos) {
  EXPECT_TRUE(poll_for([&] {
    if (!ones->done) static_cast<void>(one.progress());
    if (!twos->done) static_cast<void>(two.progress());
    return ones->done && twos->done;
  }));
  return twos->moved;
}

// Drives the connection until `count` operations are done. Throws the connection's error.
inline void drive_until(transport::ProxyConnection& line, std::uint64_t count) {
  line.begin_drive();
  EXPECT_TRUE(
      poll_for([&] { return line.done() >= count || (static_cast<void>(line.drive()), line.done() >= count); }));
  line.end_drive();
}

}  // namespace slip::test
