#include "transport/bootstrap/bootstrap.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "transport/bootstrap/rendezvous.hpp"

namespace slip::transport {
namespace {

// The data that every rank sends to all others in the first all_gather.
struct RankContact {
  SocketAddress::WireFormat address;
  Placement placement;
};

// Time limit for the notification of a loss to travel round the ring.
constexpr std::int64_t kRingTripNs = 1'000'000'000;

FrameSocket reach_successor(Rendezvous& rendezvous, const RankId& self, const Deadline& deadline) {
  try {
    return FrameSocket::reach_in_time(rendezvous.successor, rendezvous.session, deadline);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) rendezvous.require_all_answered(deadline);
    const ErrorCode code = error.code() == ErrorCode::kIo ? ErrorCode::kRankLost : error.code();
    base::fail(code, {},
               "rank {} is not reached by rank {}, its predecessor in the ring: {}; its process has ended, or "
               "SLIP_SOCKET_IFNAME must name an interface that all hosts reach",
               self.successor(), self.rank, base::bare_text(error));
  }
}

std::int64_t deadline_in(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    base::fail(ErrorCode::kInvalidValue, {}, "a timeout of {} ms: it must be positive", timeout.count());
  return base::deadline_after(std::chrono::nanoseconds(timeout).count());
}

}  // namespace

Bootstrap::Bootstrap(const UniqueId& id, int nranks, int rank, const BootstrapOptions& options)
    : self_{rank, nranks},
      timeout_(options.timeout),
      abort_(options.abort ? options.abort : std::make_shared<AbortFlag>()) {
  if (!id.valid()) base::fail(ErrorCode::kInvalidValue, {}, "the UniqueId is empty: make it with create() or parse()");
  const Deadline deadline{deadline_in(timeout_), abort_.get()};
  const InterfaceFilter filter(base::socket_interface_rule());
  Rendezvous rendezvous = meet_at_root(id, self_, filter, deadline);
  session_ = rendezvous.session;
  const Secret id_bytes = derive("slip id");
  std::memcpy(&id_, id_bytes.data(), sizeof(id_));
  const SocketAddress listening = rendezvous.listener.local();
  server_ = std::make_unique<ControlServer>(self_, session_, std::move(rendezvous.listener), abort_, options.heartbeat);
  // From here on all ranks have the same deadline, so the rank whose neighbour is missing times out first.
  const std::int64_t common_ns = std::min(deadline.at_ns, base::deadline_after(rendezvous.rest_ns));
  server_->detector().begin_init(common_ns);
  join(rendezvous, listening, {common_ns, &broken_flag()});
  if (!options.setup_follows) server_->detector().end_init();
}

void Bootstrap::join(Rendezvous& rendezvous, const SocketAddress& listening, const Deadline& deadline) {
  try {
    if (nranks() > 1) server_->join_ring(reach_successor(rendezvous, self_, deadline), deadline.at_ns);
    const SetupCall call{SetupKind::kInit, deadline.at_ns + kNotifyNs};
    for (const RankContact& contact : all_gather(RankContact{listening.wire(), Placement::own()}, call)) {
      addresses_.emplace_back(contact.address);
      placements_.push_back(contact.placement);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted) failures().throw_if_broken();  // throws the error with the cause instead
    failures().fail(error.code(), base::bare_text(error));  // otherwise the others would see only that this rank left
    throw;
  }
}

SetupCall Bootstrap::begin(SetupKind kind, std::chrono::milliseconds timeout) const {
  return {kind, deadline_in(timeout)};
}

void Bootstrap::set_call(const SetupCall& call) {
  call_ = call;
  if (call.kind == SetupKind::kInit) {
    // The neighbours of a silent rank find it at the deadline, and must notify the others before those time out.
    server_->detector().begin_init(call.deadline_ns);
    call_.deadline_ns += kNotifyNs;
  } else {
    server_->detector().end_init();
  }
}

SetupCall Bootstrap::call_of(const SetupCall& call) const {
  SetupCall result = call.deadline_ns != 0 ? call : call_;
  if (result.deadline_ns == 0) result.deadline_ns = deadline_in(timeout_);
  return result;
}

Error Bootstrap::with_cause(const Error& observed) const {
  if (observed.code() != ErrorCode::kIo && observed.code() != ErrorCode::kRankLost &&
      observed.code() != ErrorCode::kAborted)
    return observed;
  static_cast<void>(wait_a_moment(kRingTripNs, {0, &broken_flag()}));
  try {
    failures().throw_if_broken();
  } catch (const Error& cause) {
    return cause;
  }
  return observed;
}

const SocketAddress& Bootstrap::address(int rank) const {
  if (rank < 0 || rank >= nranks())
    base::fail(ErrorCode::kInvalidValue, {}, "rank {} of {}: ranks are 0 to {}", rank, nranks(), nranks() - 1);
  return addresses_[static_cast<std::size_t>(rank)];
}

void Bootstrap::all_gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call) {
  server_->messages().gather(table, bytes_per_rank, call_of(call));
}

std::map<int, std::vector<std::byte>> Bootstrap::ask(std::span<const int> ranks,
                                                     std::chrono::milliseconds timeout) const {
  std::vector<std::pair<int, SocketAddress>> asked;
  for (const int rank : ranks) {
    if (rank != self_.rank) asked.emplace_back(rank, address(rank));
  }
  return server_->messages().ask(asked, deadline_in(timeout));
}

}  // namespace slip::transport
