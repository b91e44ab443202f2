#include "transport/bootstrap/bootstrap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/error_text.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/meeting.hpp"

namespace slip {
namespace {

// What every rank tells all others at first.
struct Card {
  SocketAddress::Wire address;
  Placement placement;
};

// The notification of a lost rank takes a moment to pass round the ring.
constexpr std::int64_t kNewsNs = 1'000'000'000;
// A rank that waits for its neighbour in the ring until the deadline tells the others then which one it is.
constexpr std::int64_t kTellingNs = 2'000'000'000;

FrameSocket reach_successor(Meeting& meeting, const Newcomer& self, const Patience& patience) {
  try {
    return FrameSocket::reach_in_time(meeting.successor, meeting.session, patience);
  } catch (const Error& error) {
    if (error.code() == Code::kIo) meeting.require_all_answered(patience);
    const Code code = error.code() == Code::kIo ? Code::kRankLost : error.code();
    throw Error(code,
                fmt::format("rank {} is not reached by rank {}, its predecessor in the ring: {}; its process ended, or "
                            "SLIP_SOCKET_IFNAME must name an interface that all hosts reach",
                            (self.rank + 1) % self.nranks, self.rank, bare_text(error)),
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
  const Patience patience{deadline_in(timeout_), abort_.get()};
  const InterfaceFilter filter(options.interface.empty() ? env_text("SLIP_SOCKET_IFNAME") : options.interface);
  Meeting meeting = meet(id, {rank, nranks}, filter, patience);
  session_ = meeting.session;
  const Secret id_bytes = derive("slip id");
  std::memcpy(&id_, id_bytes.data(), sizeof(id_));
  const SocketAddress listening = meeting.listener.local();
  switchboard_ = std::make_unique<Switchboard>(Switchboard::Self{rank, nranks, meeting.session},
                                               std::move(meeting.listener), abort_, options.heartbeat);
  // From here on all ranks have the same deadline, so that a rank that misses its neighbour is the first to give up.
  const std::int64_t rest = deadline_after(meeting.rest_ns);
  join(meeting, listening, {std::min(patience.deadline_ns, rest), &broken_flag()});
}

void Bootstrap::join(Meeting& meeting, const SocketAddress& listening, const Patience& patience) {
  try {
    if (nranks_ > 1)
      switchboard_->join_ring(reach_successor(meeting, {rank_, nranks_}, patience), patience.deadline_ns);
    const SetupCall call{SetupKind::kInit, patience.deadline_ns + kTellingNs};
    for (const Card& card : all_gather(Card{listening.wire(), Placement::own()}, call)) {
      addresses_.emplace_back(card.address);
      placements_.push_back(card.placement);
    }
  } catch (const Error& error) {
    if (error.code() == Code::kAborted) throw_if_broken();  // which says why
    switchboard_->fail(error.code(), bare_text(error));     // or else the others would see that this rank left
    throw;
  }
}

Bootstrap::~Bootstrap() = default;

SetupCall Bootstrap::begin(SetupKind kind, std::chrono::milliseconds timeout) const {
  return {kind, deadline_in(timeout)};
}

std::int64_t Bootstrap::deadline_of(const SetupCall& call) const {
  return call.deadline_ns != 0 ? call.deadline_ns : deadline_in(timeout_);
}

Error Bootstrap::with_cause(const Error& met) const {
  if (met.code() != Code::kIo && met.code() != Code::kRankLost && met.code() != Code::kAborted) return met;
  static_cast<void>(wait_a_moment(kNewsNs, {0, &broken_flag()}));
  try {
    throw_if_broken();
  } catch (const Error& cause) {
    return cause;
  }
  return met;
}

const SocketAddress& Bootstrap::address(int rank) const {
  if (rank < 0 || rank >= nranks_)
    throw Error(Code::kInvalidValue, fmt::format("rank {} of {}: ranks are 0 to {}", rank, nranks_, nranks_ - 1), {});
  return addresses_[static_cast<std::size_t>(rank)];
}

void Bootstrap::all_gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call) {
  switchboard_->gather(table, bytes_per_rank, {call.kind, deadline_of(call)});
}

void Bootstrap::barrier(std::chrono::milliseconds timeout) { barrier({call_.kind, deadline_in(timeout)}); }

void Bootstrap::send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SetupCall& call) {
  switchboard_->send(rank, tag, bytes, address(rank), deadline_of(call));
}

std::vector<std::byte> Bootstrap::recv(int rank, std::uint64_t tag, const SetupCall& call) {
  static_cast<void>(address(rank));
  return switchboard_->recv(rank, tag, deadline_of(call));
}

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
