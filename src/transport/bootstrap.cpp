#include "transport/bootstrap.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "slip/error.hpp"
#include "transport/meeting.hpp"
#include "transport/secret.hpp"

namespace slip {
namespace {

// What every rank tells all others at first.
struct Card {
  SocketAddress::Wire address;
  Placement placement;
};

Socket reach_successor(const SocketAddress& successor, const Newcomer& self, const Patience& patience) {
  try {
    return Socket::connect(successor, patience);
  } catch (const Error& error) {
    const Code code = error.code() == Code::kIo ? Code::kRankLost : error.code();
    throw Error(code,
                fmt::format("{}: rank {}, its successor in the ring, is not reached: {}; its process ended, or "
                            "SLIP_SOCKET_IFNAME must name an interface that all hosts reach",
                            self.text(), (self.rank + 1) % self.nranks, error.what()),
                {});
  }
}

std::int64_t deadline_in(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    throw Error(Code::kInvalidValue, fmt::format("a timeout of {} ms: it must be positive", timeout.count()), {});
  return deadline_after(std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count());
}

}  // namespace

Bootstrap::Bootstrap(const UniqueId& id, int nranks, int rank, const BootstrapOptions& options)
    : rank_(rank),
      nranks_(nranks),
      timeout_(options.timeout),
      abort_(options.abort ? options.abort : std::make_shared<AbortFlag>()) {
  if (!id.valid()) throw Error(Code::kInvalidValue, "the UniqueId is empty: make it with create() or parse()", {});
  const Patience patience{deadline(), abort_.get()};
  const InterfaceFilter filter(options.interface.empty() ? env_text("SLIP_SOCKET_IFNAME") : options.interface);
  Meeting meeting = meet(id, {rank, nranks}, filter, patience);
  id_ = secret_of(std::to_string(meeting.session));
  const SocketAddress listening = meeting.listener.local();
  switchboard_ = std::make_unique<Switchboard>(Switchboard::Self{rank, nranks, meeting.session},
                                               std::move(meeting.listener), abort_, options.heartbeat);
  if (nranks > 1)
    switchboard_->join_ring(reach_successor(meeting.successor, {rank, nranks}, patience), patience.deadline_ns);
  const std::vector<Card> cards = all_gather(Card{listening.wire(), Placement::own()});
  for (const Card& card : cards) {
    addresses_.emplace_back(card.address);
    placements_.push_back(card.placement);
  }
}

Bootstrap::~Bootstrap() = default;

std::int64_t Bootstrap::deadline() const { return deadline_in(timeout_); }

const SocketAddress& Bootstrap::address(int rank) const {
  if (rank < 0 || rank >= nranks_)
    throw Error(Code::kInvalidValue, fmt::format("rank {} of {}: ranks are 0 to {}", rank, nranks_, nranks_ - 1), {});
  return addresses_[static_cast<std::size_t>(rank)];
}

void Bootstrap::all_gather(std::span<std::byte> table, std::size_t bytes_per_rank) {
  switchboard_->gather(table, bytes_per_rank, deadline());
}

void Bootstrap::barrier() { barrier(timeout_); }
void Bootstrap::barrier(std::chrono::milliseconds timeout) { switchboard_->gather({}, 0, deadline_in(timeout)); }

void Bootstrap::send(int rank, std::uint64_t tag, std::span<const std::byte> bytes) {
  switchboard_->send(rank, tag, bytes, address(rank), deadline());
}

std::vector<std::byte> Bootstrap::recv(int rank, std::uint64_t tag) { return recv(rank, tag, timeout_); }

std::vector<std::byte> Bootstrap::recv(int rank, std::uint64_t tag, std::chrono::milliseconds timeout) {
  static_cast<void>(address(rank));
  return switchboard_->recv(rank, tag, deadline_in(timeout));
}

std::map<int, std::vector<std::byte>> Bootstrap::ask(std::span<const int> ranks,
                                                     std::chrono::milliseconds timeout) const {
  std::vector<std::pair<int, SocketAddress>> asked;
  for (const int rank : ranks) {
    if (rank != rank_) asked.emplace_back(rank, address(rank));
  }
  return switchboard_->ask(asked, deadline_in(timeout));
}

std::optional<Loss> Bootstrap::lost() const {
  if (!broken()) return std::nullopt;
  const std::vector<Loss> losses = switchboard_->losses();
  return losses.empty() ? std::nullopt : std::optional(losses.front());
}

}  // namespace slip
