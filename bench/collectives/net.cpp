// The TCP transport on loopback between two threads, compared with plain non-blocking sockets used in the same way, one
// thread at each end.
#include "transport/net/net.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bars.hpp"
#include "base/clock.hpp"
#include "transport/net/proxy.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kStreamMessages = 16;

transport::Deadline long_deadline() { return {base::deadline_after(60'000'000'000), nullptr}; }

// One end of a connection on which both sides send.
struct End {
  std::unique_ptr<transport::NetSender> sender;
  std::unique_ptr<transport::NetReceiver> receiver;
};

std::array<End, 2> make_ends(int sockets) {
  std::array<std::unique_ptr<transport::NetListener>, 2> listeners;
  std::array<End, 2> ends;
  transport::NetOptions options;
  options.host = "127.0.0.1";
  options.sockets = sockets;
  for (auto& listener : listeners) listener = transport::net_tcp().listen(options);
  for (std::size_t i = 0; i < 2; ++i) {
    ends[i].sender = transport::net_tcp().connect(listeners[1 - i]->handle(), options, long_deadline());
    ends[1 - i].receiver = listeners[1 - i]->accept(long_deadline());
  }
  return ends;
}

// Nanoseconds until both threads have run `body`.
template <class Body>
double timed(const Body& body) {
  const Timer timer;
  std::thread other([&] { body(std::size_t{1}); });
  body(std::size_t{0});
  other.join();
  return timer.elapsed_ns();
}

template <class Send, class Receive>
double one_way_ns(std::size_t turns, const Send& send, const Receive& receive) {
  const double ns = timed([&](std::size_t end) {
    for (std::size_t i = 0; i < turns; ++i) {
      if (end == 0) send(end);
      receive(end);
      if (end == 1) send(end);
    }
  });
  return ns / static_cast<double>(2 * turns);
}

Measure our_ping_pong(std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    std::array<End, 2> ends = make_ends(1);
    std::vector<std::byte> memory[2] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
    std::array<std::unique_ptr<transport::NetMemory>, 2> out, in;
    for (std::size_t i = 0; i < 2; ++i) {
      out[i] = ends[i].sender->register_memory(memory[i]);
      in[i] = ends[i].receiver->register_memory(memory[i]);
    }
    const transport::Deadline deadline = long_deadline();
    return one_way_ns(
        context.iterations(20'000),
        [&](std::size_t end) {
          transport::NetSender& line = *ends[end].sender;
          line.wait(line.isend({memory[end].data(), bytes, 0, out[end].get()}), deadline);
        },
        [&](std::size_t end) {
          transport::NetReceiver& line = *ends[end].receiver;
          const transport::NetPart part{memory[end].data(), bytes, 0, in[end].get()};
          line.wait(line.irecv(std::span(&part, 1)), deadline);
        });
  };
}

Measure proxied_ping_pong(std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    std::array<End, 2> ends = make_ends(1);
    std::vector<std::byte> memory[2] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
    std::array<std::unique_ptr<transport::ProxyConnection>, 2> out, in;
    for (std::size_t i = 0; i < 2; ++i) {
      out[i] = std::make_unique<transport::ProxyConnection>(transport::Proxy::of_process(), std::move(ends[i].sender));
      in[i] = std::make_unique<transport::ProxyConnection>(transport::Proxy::of_process(), std::move(ends[i].receiver));
    }
    const transport::Deadline deadline = long_deadline();
    const auto move = [&](transport::ProxyConnection& line, std::size_t end) {
      line.post(memory[end], transport::ProxyConnection::Next::kWait);
      line.wait(line.posted(), deadline);
    };
    return one_way_ns(
        context.iterations(20'000), [&](std::size_t end) { move(*out[end], end); },
        [&](std::size_t end) { move(*in[end], end); });
  };
}

Measure our_stream(int sockets, std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    std::array<End, 2> ends = make_ends(sockets);
    std::vector<std::byte> from(bytes), to(bytes);
    const auto out = ends[0].sender->register_memory(from);
    const auto in = ends[1].receiver->register_memory(to);
    const std::size_t count = context.iterations(kStreamMessages);
    const double ns = timed([&](std::size_t end) {
      for (std::size_t i = 0; i < count; ++i) {
        const transport::NetPart part{end == 0 ? from.data() : to.data(), bytes, 0, end == 0 ? out.get() : in.get()};
        if (end == 0) ends[0].sender->wait(ends[0].sender->isend(part), long_deadline());
        else ends[1].receiver->wait(ends[1].receiver->irecv(std::span(&part, 1)), long_deadline());
      }
    });
    return static_cast<double>(bytes * count) / ns * 1e9;
  };
}

struct RawPair {
  transport::Socket ends[2];
  RawPair() {
    const transport::Socket listener = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
    ends[0] = transport::Socket::connect(listener.local(), long_deadline());
    ends[1] = listener.accept(long_deadline());
  }
};

template <class Call>
void by_hand(const Call& call, std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t moved = call(data, bytes);
    if (moved == 0 || (moved < 0 && errno != EAGAIN)) throw std::runtime_error("a plain socket failed");
    if (moved < 0) continue;
    data += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
}

void send_by_hand(int descriptor, std::byte* data, std::size_t bytes) {
  by_hand([=](std::byte* at, std::size_t rest) { return ::send(descriptor, at, rest, MSG_NOSIGNAL); }, data, bytes);
}
void recv_by_hand(int descriptor, std::byte* data, std::size_t bytes) {
  by_hand([=](std::byte* at, std::size_t rest) { return ::recv(descriptor, at, rest, 0); }, data, bytes);
}

Measure raw_ping_pong(std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    const RawPair pair;
    std::vector<std::byte> memory[2] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
    return one_way_ns(
        context.iterations(20'000),
        [&](std::size_t end) { send_by_hand(pair.ends[end].descriptor(), memory[end].data(), bytes); },
        [&](std::size_t end) { recv_by_hand(pair.ends[end].descriptor(), memory[end].data(), bytes); });
  };
}

Measure raw_stream(std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    const RawPair pair;
    std::vector<std::byte> memory[2] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
    const std::size_t count = context.iterations(kStreamMessages);
    const double ns = timed([&](std::size_t end) {
      for (std::size_t i = 0; i < count; ++i) {
        if (end == 0) send_by_hand(pair.ends[0].descriptor(), memory[0].data(), bytes);
        else recv_by_hand(pair.ends[1].descriptor(), memory[1].data(), bytes);
      }
    });
    return static_cast<double>(bytes * count) / ns * 1e9;
  };
}

Bar latency(std::string name, Measure ours, std::size_t bytes, double target) {
  return {.area = "collectives",
          .name = std::move(name),
          .unit = Unit::kNanoseconds,
          .better = Better::kLower,
          .ours = std::move(ours),
          .peers = {{.name = "sockets_by_hand", .measure = raw_ping_pong(bytes)}},
          .target = target};
}

Bar rate(std::string name, Measure ours, std::vector<Peer> peers, double target) {
  return {.area = "collectives",
          .name = std::move(name),
          .unit = Unit::kBytesPerSecond,
          .better = Better::kHigher,
          .ours = std::move(ours),
          .peers = std::move(peers),
          .target = target};
}

}  // namespace

void add_net_bars(Harness& harness) {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  harness.add(latency("net_one_way_8B", our_ping_pong(8), 8, 0.9));
  harness.add(latency("net_one_way_8KiB", our_ping_pong(8192), 8192, 0.9));
  harness.add(latency("net_one_way_8B_proxied", proxied_ping_pong(8), 8, 0.8));
  harness.add(rate("net_stream_64MiB", our_stream(1, kLarge),
                   {{.name = "socket_by_hand", .measure = raw_stream(kLarge)}}, 0.95));
  harness.add(rate("net_stream_64MiB_one_socket", our_stream(1, kLarge),
                   {{.name = "two_sockets", .measure = our_stream(2, kLarge)},
                    {.name = "four_sockets", .measure = our_stream(4, kLarge)}},
                   1));
}

}  // namespace slip::bench
