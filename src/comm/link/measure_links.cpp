#include "comm/link/measure_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/clock.hpp"
#include "base/sync.hpp"

namespace slip {
namespace {

constexpr LinkRates kPipes{.latency_us = kPipeLatencyUs, .gbps = kPipeGbps, .message_us = kPipeMessageUs};
constexpr int kPings = 16, kLarge = 3;
constexpr std::uint64_t kPingBytes = 8, kMinBytes = 64 << 10, kMaxBytes = 1 << 20;
constexpr double kLongUs = 2000;  // for the least: a slow network, and no more is needed to know its rate

class Pair {
 public:
  Pair(Bootstrap& bootstrap, Links& links, int peer, std::int64_t deadline_ns)
      : bootstrap_(bootstrap), links_(links), peer_(peer), deadline_ns_(deadline_ns) {}

  // What the other wrote there in the last exchange, and what it will read in the next.
  std::byte& said() { return in_[0]; }
  std::byte& say() { return out_[0]; }
  // Both send so many bytes and receive as many.
  double exchange_us(std::uint64_t bytes) {
    const std::int64_t begun = now_ns();
    links_.from(peer_).begin(in_.data(), bytes, nullptr);
    links_.to(peer_).begin(out_.data(), bytes, nullptr);
    for (int turn = 0;
         links_.from(peer_).done() < links_.from(peer_).begun() || links_.to(peer_).done() < links_.to(peer_).begun();
         ++turn) {
      if (links_.drive()) continue;
      spin(turn);
      if (bootstrap_.broken()) bootstrap_.throw_if_broken();
      if (now_ns() > deadline_ns_)
        throw Error(
            Code::kTimeout,
            fmt::format("rank {} measured its link to rank {}, which did not answer before the deadline of init",
                        bootstrap_.rank(), peer_),
            {});
    }
    return static_cast<double>(now_ns() - begun) / 1e3;
  }

 private:
  Bootstrap& bootstrap_;
  Links& links_;
  const int peer_;
  const std::int64_t deadline_ns_;
  std::vector<std::byte> out_ = std::vector<std::byte>(kMaxBytes), in_ = std::vector<std::byte>(kMaxBytes);
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Both ranks of the pair run this. Whether the large ones are needed, the `first` one says.
LinkRates measure(Pair& pair, bool first) {
  std::vector<double> small, large;
  for (int i = 0; i < kPings; ++i) small.push_back(pair.exchange_us(kPingBytes));
  const double min_us = pair.exchange_us(kMinBytes);
  pair.say() = std::byte{min_us < kLongUs};
  static_cast<void>(pair.exchange_us(kPingBytes));
  const bool goes_on = (first ? pair.say() : pair.said()) != std::byte{0};
  for (int i = 0; goes_on && i < kLarge; ++i) large.push_back(pair.exchange_us(kMaxBytes));
  const double latency = std::max(median(small), 0.1);
  const double bytes = static_cast<double>(goes_on ? kMaxBytes : kMinBytes);
  const double us = goes_on ? median(large) : min_us;
  return {.latency_us = latency, .gbps = bytes / (std::max(us - latency, 1.0) * 1e3), .message_us = latency / 4};
}

}  // namespace

LinkRates measure_links(Bootstrap& bootstrap, Links& links, std::int64_t deadline_ns) {
  int peer = -1;  // of rank 0
  for (int rank = bootstrap.nranks() - 1; rank > 0; --rank) {
    if (bootstrap.rank() == 0 && !links.through_memory(rank)) peer = rank;
  }
  const std::vector<int> peers = bootstrap.all_gather(peer);
  if (peers[0] < 0) return kPipes;
  LinkRates rates;
  if (bootstrap.rank() == 0 || bootstrap.rank() == peers[0]) {
    Pair pair(bootstrap, links, bootstrap.rank() == 0 ? peers[0] : 0, deadline_ns);
    rates = measure(pair, bootstrap.rank() == 0);
  }
  return bootstrap.all_gather(rates)[0];
}

}  // namespace slip
