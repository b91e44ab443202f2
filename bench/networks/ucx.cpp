// Messages over UCX between two processes on loopback, compared with ucx_perftest and with Slipstream's TCP transport.
// UCX uses TCP on the interface lo in all cases. Latency: half the time of a message and its answer. Rate: messages in
// one direction, of which up to kWindow are under way, as in ucx_perftest.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bars.hpp"
#include "base/clock.hpp"
#include "support/process.hpp"
#include "transport/net/net.hpp"
#include "transport/net/net_choice.hpp"
#include "transport/socket/socket.hpp"

namespace slip::bench {
namespace {

enum class Kind { kLatency, kRate };

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
// A sample moves about this many bytes, in kMinMessages to kMaxMessages messages.
constexpr double kBytesOfSample = 256e6;
constexpr std::size_t kMaxMessages = 10'000, kMinMessages = 8;
constexpr std::size_t kWindow = 32;  // maximum number of messages under way; the default of ucx_perftest's tag_bw

transport::Deadline long_deadline() { return {base::deadline_after(60'000'000'000), nullptr}; }

std::size_t messages_of(std::size_t bytes) {
  const auto count = static_cast<std::size_t>(kBytesOfSample / static_cast<double>(bytes));
  return std::min(kMaxMessages, std::max(kMinMessages, count));
}

void write_all(int descriptor, std::span<const std::byte> bytes) {
  if (::write(descriptor, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("the other process is gone");
}
void read_exactly(int descriptor, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t got = ::read(descriptor, bytes.data() + at, bytes.size() - at);
    if (got <= 0) throw std::runtime_error("the other process is gone");
    at += static_cast<std::size_t>(got);
  }
}

// One process's side: a connection in each direction.
class Side {
 public:
  // The handles of the listeners go through the pipes.
  Side(const transport::Net& net, std::size_t bytes, int to, int from) : memory_(bytes) {
    transport::NetOptions options;
    options.host = "127.0.0.1";
    const auto listener = net.listen(options);
    write_all(to, listener->handle());
    transport::NetHandle other;
    read_exactly(from, other);
    sender_ = net.connect(other, options, long_deadline());
    receiver_ = listener->accept(long_deadline());
    out_ = sender_->register_memory(memory_);
    in_ = receiver_->register_memory(memory_);
  }
  // `first`: this side begins. kRate: after the last message the other side sends one back, so both end together.
  void run(Kind kind, std::size_t messages, bool first) {
    if (kind == Kind::kRate) {
      move(first, messages);
      move(!first, 1);
      return;
    }
    for (std::size_t i = 0; i < messages; ++i) {
      move(first, 1);
      move(!first, 1);
    }
  }

 private:
  transport::NetRequest* post(bool sends) {
    const transport::NetPart part{memory_.data(), memory_.size(), 0, sends ? out_.get() : in_.get()};
    return sends ? sender_->isend(part) : receiver_->irecv(std::span(&part, 1));
  }
  // Sends or receives so many messages, all from or to the same bytes.
  void move(bool sends, std::size_t messages) {
    transport::NetConnection& end = sends ? static_cast<transport::NetConnection&>(*sender_) : *receiver_;
    std::array<transport::NetRequest*, kWindow> under_way;
    for (std::size_t begun = 0, done = 0; done < messages; ++done) {
      for (; begun < messages && begun < done + kWindow; ++begun) under_way[begun % kWindow] = post(sends);
      end.wait(under_way[done % kWindow], deadline_);
    }
  }

  std::vector<std::byte> memory_;
  std::unique_ptr<transport::NetSender> sender_;
  std::unique_ptr<transport::NetReceiver> receiver_;
  std::unique_ptr<transport::NetMemory> out_, in_;
  const transport::Deadline deadline_ = long_deadline();
};

const transport::Net& net_of(std::string_view name) {
  return name == "ucx" ? transport::net_ucx() : transport::net_tcp();
}

constexpr std::size_t kWarmUps = 20;

// Nanoseconds one way, or bytes per second.
double value_of(Kind kind, std::size_t bytes, std::size_t messages, double ns) {
  const auto count = static_cast<double>(messages);
  return kind == Kind::kLatency ? ns / count / 2 : static_cast<double>(bytes) * count / ns * 1e9;
}

Measure ours(std::string net, Kind kind, std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    if (net == "ucx" && transport::ask_ucx().version.empty()) return context.skip(transport::ask_ucx().problem);
    const std::size_t messages = context.iterations(messages_of(bytes));
    const Child child({std::filesystem::read_symlink("/proc/self/exe"), kPeerWord, net,
                       kind == Kind::kRate ? "rate" : "latency", std::to_string(bytes), std::to_string(messages)},
                      Child::Input::kPipe);
    Side side(net_of(net), bytes, child.to(), child.from());
    side.run(Kind::kLatency, kWarmUps, true);
    const Timer timer;
    side.run(kind, messages, true);
    return value_of(kind, bytes, messages, timer.elapsed_ns());
  };
}

// A port that no process listens at now.
std::uint16_t free_port() {
  return transport::Socket::listen(transport::SocketAddress::loopback(AF_INET)).local().port();
}

// The numbers of the last line that ucx_perftest prints: iterations, then latencies in us, then rates in MiB/s.
std::optional<double> read_perftest(const std::string& text, Kind kind) {
  std::vector<double> numbers;
  const std::size_t line = text.find_last_not_of("\n ");
  if (line == std::string::npos) return std::nullopt;
  const std::string last = text.substr(text.find_last_of('\n', line) + 1);
  const char* at = last.c_str();
  for (char* end = nullptr;; at = end) {
    const double value = std::strtod(at, &end);
    if (end == at) break;
    numbers.push_back(value);
  }
  if (numbers.size() != 8) return std::nullopt;
  return kind == Kind::kLatency ? numbers[3] * 1e3 : numbers[5] * static_cast<double>(kMiB);
}

Measure perftest(Kind kind, std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    const std::string port = std::to_string(free_port()), size = std::to_string(bytes);
    const std::string messages = std::to_string(context.iterations(messages_of(bytes)));
    const std::vector<std::string> words{"ucx_perftest", "-t", kind == Kind::kLatency ? "tag_lat" : "tag_bw",
                                         "-s",           size, "-n",
                                         messages,       "-w", std::to_string(kWarmUps),
                                         "-p",           port, "-f"};
    std::optional<Child> server;
    try {
      server.emplace(words);
    } catch (const std::runtime_error&) {
      return context.skip("ucx_perftest is not installed (Debian: ucx-utils)");
    }
    std::vector<std::string> client = words;
    client.insert(client.begin() + 1, "127.0.0.1");
    // The server may not listen yet: then the client ends with an error.
    for (int attempt = 0; attempt < 50; ++attempt) {
      if (const std::optional<double> value = read_perftest(Child(client).read_all(), kind)) return value;
      ::usleep(20'000);
    }
    return context.skip("ucx_perftest printed no result");
  };
}

std::string size_text(std::size_t bytes) {
  if (bytes >= kMiB) return fmt::format("{}MiB", bytes / kMiB);
  return bytes >= kKiB ? fmt::format("{}KiB", bytes / kKiB) : fmt::format("{}B", bytes);
}

void add(Harness& harness, Kind kind, std::size_t bytes) {
  const bool latency = kind == Kind::kLatency;
  const auto bar = [&](const std::string& name, const std::string& peer, Measure measure, double target) {
    harness.add({.area = "networks",
                 .name = fmt::format("ucx_{}_{}{}", latency ? "latency" : "rate", size_text(bytes), name),
                 .unit = latency ? Unit::kNanoseconds : Unit::kBytesPerSecond,
                 .better = latency ? Better::kLower : Better::kHigher,
                 .ours = ours("ucx", kind, bytes),
                 .peers = {{.name = peer, .measure = std::move(measure)}},
                 .target = target});
  };
  bar("", "ucx_perftest", perftest(kind, bytes), latency ? 1 / 1.10 : 0.95);
  bar("_against_tcp", "our_tcp", ours("tcp", kind, bytes), 1 / 1.05);
}

}  // namespace

int run_peer(int argc, char** argv) {
  if (argc != 6) return 2;
  const Kind kind = std::string_view(argv[3]) == "rate" ? Kind::kRate : Kind::kLatency;
  const std::size_t bytes = std::strtoull(argv[4], nullptr, 10), messages = std::strtoull(argv[5], nullptr, 10);
  Side side(net_of(argv[2]), bytes, STDOUT_FILENO, STDIN_FILENO);
  side.run(Kind::kLatency, kWarmUps, false);
  side.run(kind, messages, false);
  return 0;
}

void add_ucx_bars(Harness& harness) {
  ::setenv("UCX_TLS", "tcp", 1);
  ::setenv("UCX_NET_DEVICES", "lo", 1);
  for (const std::size_t bytes : {std::size_t{8}, 4 * kKiB, 32 * kKiB, 256 * kKiB}) add(harness, Kind::kLatency, bytes);
  for (const std::size_t bytes : {32 * kKiB, kMiB, 64 * kMiB}) add(harness, Kind::kRate, bytes);
}

}  // namespace slip::bench
