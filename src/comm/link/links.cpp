#include "comm/link/links.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/memory_end.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "comm/link/net_link.hpp"
#include "comm/link/pipe.hpp"
#include "transport/net/net_choice.hpp"

namespace slip::comm {
namespace {

// The maximum sleep: the failure of another rank makes no descriptor ready.
constexpr std::int64_t kSleepNs = 1'000'000;

constexpr LinkRates kPipes{.latency_us = kPipeLatencyUs, .gbps = kPipeGbps, .message_us = kPipeMessageUs};
// measure_links() exchanges kSmallBytes for the latency, and kMinBytes or kMaxBytes for the bandwidth.
constexpr int kSmallExchanges = 16, kLargeExchanges = 3;
constexpr std::uint64_t kSmallBytes = 8, kMinBytes = 64 << 10, kMaxBytes = 1 << 20;
constexpr double kLongUs = 2000;  // if an exchange of kMinBytes takes longer, kMaxBytes are not exchanged: too slow

// The links in both directions between this rank and a peer that measures at the same time.
class Pair {
 public:
  Pair(transport::Bootstrap& bootstrap, Links& links, int peer, std::int64_t deadline_ns)
      : bootstrap_(bootstrap), links_(links), peer_(peer), deadline_ns_(deadline_ns) {}

  std::byte first_received() const { return in_[0]; }  // the first byte that the peer sent in the last exchange
  std::byte& first_sent() { return out_[0]; }          // the first byte that this rank sends in the next exchange
  // Both ranks send and receive `bytes` bytes at the same time. Returns the time in microseconds.
  double exchange_us(std::uint64_t bytes) {
    const std::int64_t begun = base::now_ns();
    links_.from(peer_).begin(in_.data(), bytes, nullptr);
    links_.to(peer_).begin(out_.data(), bytes, nullptr);
    for (base::Backoff backoff; links_.from(peer_).done() < links_.from(peer_).begun() ||
                                links_.to(peer_).done() < links_.to(peer_).begun();) {
      if (links_.drive()) continue;
      backoff.pause();
      if (bootstrap_.broken()) bootstrap_.failures().throw_if_broken();
      if (base::now_ns() > deadline_ns_)
        base::fail(ErrorCode::kTimeout, {},
                   "rank {} measured its link to rank {}, which did not answer before the deadline of init",
                   bootstrap_.rank(), peer_);
    }
    return static_cast<double>(base::now_ns() - begun) / 1e3;
  }

 private:
  transport::Bootstrap& bootstrap_;
  Links& links_;
  const int peer_;
  const std::int64_t deadline_ns_;
  // NotifyingAllocator: the network may register these bytes, and must deregister them before they are freed.
  using Bytes = std::vector<std::byte, base::NotifyingAllocator<std::byte>>;
  Bytes out_ = Bytes(kMaxBytes), in_ = Bytes(kMaxBytes);
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Both ranks of the pair call this function. One of them, with `first`, decides for both whether they exchange
// kMaxBytes, too.
LinkRates measure(Pair& pair, bool first) {
  std::vector<double> small, large;
  for (int i = 0; i < kSmallExchanges; ++i) small.push_back(pair.exchange_us(kSmallBytes));
  const double min_bytes_us = pair.exchange_us(kMinBytes);
  pair.first_sent() = std::byte{min_bytes_us < kLongUs};
  static_cast<void>(pair.exchange_us(kSmallBytes));
  const bool measures_large = (first ? pair.first_sent() : pair.first_received()) != std::byte{0};
  for (int i = 0; measures_large && i < kLargeExchanges; ++i) large.push_back(pair.exchange_us(kMaxBytes));
  const double latency = std::max(median(small), 0.1);
  const double bytes = static_cast<double>(measures_large ? kMaxBytes : kMinBytes);
  const double us = measures_large ? median(large) : min_bytes_us;
  // message_us is not measured; a quarter of the latency is an estimate.
  return {.latency_us = latency, .gbps = bytes / (std::max(us - latency, 1.0) * 1e3), .message_us = latency / 4};
}

std::string paths_text(int own, int rank, int channel, const std::vector<transport::RailPath>& paths) {
  std::string text = fmt::format("rank {} to rank {}, channel {}:", own, rank, channel);
  for (const transport::RailPath& one : paths)
    text += fmt::format("{} {}", &one == paths.data() ? "" : ",", one.text());
  return text;
}

}  // namespace

Links::Links(transport::Bootstrap& bootstrap, SharedHost* host, transport::NetOptions net_options,
             std::int64_t timeout_ns, int channels, const TopologyNics& topology)
    : bootstrap_(bootstrap),
      host_(host),
      net_options_(std::move(net_options)),
      timeout_ns_(timeout_ns),
      channels_(channels),
      arrived_(index(0, channels)),
      outlets_(index(0, channels)),
      inlets_(index(0, channels)) {
  net_options_.rank = bootstrap.rank();
  net_options_.host = bootstrap.host();
  net_options_.key = bootstrap.derive("slip lines");
  transport::require_known_net(base::env().net);
  // If one rank needs the network, all ranks listen: listen() gathers the handles of all ranks.
  bool needs_net = false;
  for (int rank = 0; rank < bootstrap.nranks(); ++rank)
    needs_net = needs_net || (rank != bootstrap.rank() && !through_memory(rank));
  const std::vector<char> needed = bootstrap.all_gather(static_cast<char>(needs_net ? 1 : 0));
  if (std::find(needed.begin(), needed.end(), 1) == needed.end()) return;
  net_options_.rails = LinkRails::own(net_options_.interface, net_options_.host, topology);
  listen();
  rails_ = LinkRails(bootstrap, listener_->rails(), topology);
  set_call_channels(1);
  arrived_.resize(index(0, numbers()));
  outlets_.resize(index(0, numbers()));
  inlets_.resize(index(0, numbers()));
  if (bootstrap.rank() == 0 && rails_.count() > 0 && (base::debugs("net") || base::debugs("topo")))
    base::log_line(rails_.text(channels));
}

// All ranks call it together. Each rank listens on the network that it chose, and sends its choice with the address. If
// the choices differ and agree_on_net() falls back to TCP, all ranks listen again, on TCP.
void Links::listen() {
  struct Contact {
    transport::NetOffer offer;
    transport::NetHandle handle{};
  };
  const transport::NetChoice& own = transport::net_choice();
  net_ = own.net;
  listener_ = net_->listen(net_options_);
  const std::vector<Contact> all = bootstrap_.all_gather(Contact{transport::NetOffer::of(own), listener_->handle()});
  std::vector<transport::NetOffer> offers;
  for (const Contact& one : all) {
    offers.push_back(one.offer);
    handles_.push_back(one.handle);
  }
  const transport::NetAgreement agreement = transport::agree_on_net(offers);
  if (agreement.falls_back) {
    net_ = &transport::net_tcp();
    listener_ = net_->listen(net_options_);
    handles_ = bootstrap_.all_gather(listener_->handle());
  }
  if (bootstrap_.rank() != 0 || !base::debugs("net")) return;
  base::log_line(agreement.falls_back ? fmt::format("network tcp: {}", agreement.why)
                                      : fmt::format("network {}: {}", own.name, own.why));
}

bool Links::through_memory(int rank) const { return host_ && host_->has(rank); }

LinkEnd& Links::end(Ends& ends, int rank, int number, bool out) {
  std::unique_ptr<LinkEnd>& place = ends[index(rank, number)];
  if (!place) {
    place = make(rank, number, out);
    made_.push_back({place.get(), rank});
  }
  return *place;
}

std::unique_ptr<LinkEnd> Links::make(int rank, int number, bool out) {
  const int own = bootstrap_.rank();
  if (through_memory(rank)) {
    const transport::Placement& here = bootstrap_.placements()[static_cast<std::size_t>(own)];
    const transport::Placement& there = bootstrap_.placements()[static_cast<std::size_t>(rank)];
    const bool threads = transport::same_process(here, there);
    // A process id names the same process for both ranks only in one PID namespace.
    const bool may_read = here.pid_space == there.pid_space && host_->may_read();
    if (out)
      return std::make_unique<PipeOutlet>(host_->pipe(own, rank, number), threads    ? PipeReach::kThreads
                                                                          : may_read ? PipeReach::kProcesses
                                                                                     : PipeReach::kNever);
    return std::make_unique<PipeInlet>(host_->pipe(rank, own, number), own, rank, threads ? 0 : there.pid);
  }
  if (out) return std::make_unique<NetOutlet>([this, rank, number] { return connect(rank, number); });
  return std::make_unique<NetInlet>([this, rank, number] { return accept(rank, number); }, own, rank);
}

// A connection needs its sockets and an event descriptor. Both ranks of a pair send to each other, hence the factor 2.
void Links::fail_descriptors(const base::TooManyFiles& error) const {
  int others = 0;
  for (int rank = 0; rank < bootstrap_.nranks(); ++rank) others += rank != bootstrap_.rank() && !through_memory(rank);
  base::fail(error.code(), {},
             "{}. Rank {} needs up to {} descriptors for its connections: to and from {} ranks, over {} channels of {} "
             "sockets and an event descriptor. Lower SLIP_MAX_CHANNELS or SLIP_SOCKETS to need fewer",
             base::bare_text(error), bootstrap_.rank(), 2 * others * numbers() * (net_options_.sockets + 1), others,
             numbers(), net_options_.sockets);
}

std::unique_ptr<transport::ProxyConnection> Links::connect(int rank, int number) {
  transport::NetOptions options = net_options_;
  options.channel = number;
  const RailUse use = number < channels_ ? RailUse::kBound : RailUse::kStriped;
  options.paths = rails_.paths(rank, number % channels_, use);
  options.lost_path = [&](const transport::RailPath& path, const std::string& why) {
    rails_.lose(path);
    if (base::debugs("net"))
      base::log_line(fmt::format("rank {} does not use {} to rank {}: {}", bootstrap_.rank(), path.text(), rank, why));
  };
  if (base::debugs("net") && !options.paths.empty())
    base::log_line(paths_text(bootstrap_.rank(), rank, number % channels_, options.paths));
  try {
    return std::make_unique<transport::ProxyConnection>(
        transport::Proxy::of_process(), net_->connect(handles_[static_cast<std::size_t>(rank)], options,
                                                      {base::now_ns() + timeout_ns_, &bootstrap_.broken_flag()}));
  } catch (const base::TooManyFiles& error) {
    failed_rank_ = rank;
    fail_descriptors(error);
  } catch (const Error& error) {
    failed_rank_ = rank;
    if (error.code() == ErrorCode::kAborted) bootstrap_.failures().throw_if_broken();  // throws the reason of the abort
    throw;
  }
}

std::unique_ptr<transport::ProxyConnection> Links::accept(int rank, int number) try {
  while (std::unique_ptr<transport::NetReceiver> receiver = listener_->accept(nullptr)) {
    const transport::NetPeer& from = receiver->peer();
    if (from.rank < 0 || from.rank >= bootstrap_.nranks() || from.channel < 0 || from.channel >= numbers()) continue;
    arrived_[index(from.rank, from.channel)] = std::move(receiver);
  }
  std::unique_ptr<transport::NetReceiver>& wanted = arrived_[index(rank, number)];
  if (!wanted) return nullptr;
  return std::make_unique<transport::ProxyConnection>(transport::Proxy::of_process(), std::move(wanted));
} catch (const base::TooManyFiles& error) {
  fail_descriptors(error);
}

bool Links::drive() {
  bool moved = false;
  for (const Made& one : made_) moved = drive(*one.end, one.rank) || moved;
  return moved;
}

bool Links::drive(LinkEnd& end, int rank) {
  try {
    return end.drive();
  } catch (...) {
    failed_rank_ = rank;
    throw;
  }
}

void Links::close() noexcept {
  for (const Made& one : made_) one.end->close();
}

bool Links::sleep() {
  watched_.clear();
  std::int64_t limit_ns = kSleepNs;
  for (const Made& one : made_) {
    if (one.end->begun() != one.end->done()) limit_ns = std::min(limit_ns, one.end->add_poll_fds(watched_));
    if (limit_ns == 0) return false;
  }
  transport::wait_for_any(watched_, limit_ns);
  return true;
}

bool Links::notify(base::Subscriber& subscriber) {
  bool any = false;
  for (const Made& one : made_) {
    if (one.end->begun() == one.end->done()) continue;
    any = true;
    if (one.end->notify(&subscriber)) continue;
    stop_notifying();
    return false;
  }
  return any;
}

void Links::stop_notifying() {
  for (const Made& one : made_) static_cast<void>(one.end->notify(nullptr));
}

void Links::set_driven(bool driven) {
  for (const Made& one : made_) {
    if (one.end->begun() != one.end->done()) one.end->set_driven(driven);
  }
}

LinkRates measure_links(transport::Bootstrap& bootstrap, Links& links, std::int64_t deadline_ns) {
  int peer = -1;  // on rank 0: the first rank that it reaches only over the network; -1: none
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

}  // namespace slip::comm
