#include "transport/bootstrap/rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/clock.hpp"
#include "base/fail.hpp"

namespace slip::transport {
namespace {

constexpr std::int64_t kFirstPauseNs = 500'000;
constexpr std::int64_t kMaxPauseNs = 20'000'000;
// How long rank 0 waits until its own name is known, and the time between two attempts: it doubles up to the maximum.
constexpr std::int64_t kOwnNameLimitNs = 10'000'000'000;
constexpr std::int64_t kFirstNamePauseNs = 100'000'000, kMaxNamePauseNs = 2'000'000'000;

// Repeats the attempt if the name of rank 0's host is not known yet: Kubernetes makes the name of a pod when the pod
// starts. Rank 0 has started, so for rank 0 the name is probably wrong; it gives up early and so ends the job.
std::vector<SocketAddress> resolve_in_time(const UniqueId& id, const RankId& self, const Deadline& deadline) {
  const Deadline limit = self.rank == 0 ? deadline.within(kOwnNameLimitNs) : deadline;
  for (std::int64_t pause = kFirstNamePauseNs;; pause = std::min(2 * pause, kMaxNamePauseNs)) {
    try {
      return resolve(id.host(), id.port());
    } catch (const Error&) {
      if (!id.rank0_listens()) throw;
      const Waited waited = wait_a_moment(pause, limit);
      if (waited == Waited::kAborted)
        throw Error(ErrorCode::kAborted, self.text() + ": aborted while it looked for the root", {});
      if (waited == Waited::kTimeout) throw;
    }
  }
}

struct RootAddresses {
  std::vector<SocketAddress> all;
  bool own_name = false;  // the id names this host by a name that means the loopback interface here
};

// On Debian, /etc/hosts gives the host's own name the address 127.0.1.1. Other hosts know the name by another address,
// so on its own host it means the address of an interface. Names like localhost mean the loopback interface.
RootAddresses addresses_of(const UniqueId& id, const RankId& self, const InterfaceFilter& filter,
                           const Deadline& deadline) {
  const std::string host = id.host();
  constexpr std::string_view kUnix = UniqueIdParts::kUnix;
  if (host.starts_with(kUnix)) return {{SocketAddress::unix_name(std::string_view(host).substr(kUnix.size()))}};
  RootAddresses result{resolve_in_time(id, self, deadline)};
  const auto has = [&](std::string_view part) { return host.find(part) != std::string::npos; };
  const bool is_number = has(":") || host.find_first_not_of("0123456789.") == std::string::npos;
  const bool all_loopback = std::ranges::all_of(result.all, &SocketAddress::is_loopback);
  if (is_number || has("localhost") || has("loopback") || !all_loopback) return result;
  return {{own_address(filter).with_port(id.port())}, true};
}

// The address at which rank 0 must listen so that others reach it at `address`. If an interface of this host has that
// address, it is the same; otherwise (for example with NAT) it is all interfaces.
SocketAddress listening_address(const SocketAddress& address) {
  if (!address.is_tcp() || address.is_loopback()) return address;
  for (const Interface& one : list_interfaces()) {
    if (one.address.host() == address.host()) return address;
  }
  return SocketAddress::any(address.family(), address.port());
}

// The port may follow from variables of a launcher, so the error says how to choose another one.
Socket listen_as_root(const SocketAddress& address, const RankId& self) {
  try {
    return Socket::listen(address);
  } catch (const Error& error) {
    base::fail(error.code(), {},
               "{}, to which the other ranks connect: {}; set SLIP_ID to another port of this host (or another "
               "unix:NAME), the same for all ranks",
               self.text(), base::bare_text(error));
  }
}

HelloBody hello_of(const SocketAddress& listening, std::int64_t timeout_ns) {
  HelloBody body;
  body.address = listening.wire();
  body.pid = ::getpid();
  body.timeout_ns = timeout_ns;
  static_cast<void>(::gethostname(body.host, sizeof(body.host) - 1));
  return body;
}

ErrorCode refusal_code(std::uint64_t tag) {
  for (const ErrorCode code : {ErrorCode::kTimeout, ErrorCode::kRankLost}) {
    if (tag == static_cast<std::uint64_t>(code)) return code;
  }
  return ErrorCode::kInvalidValue;
}

Error late(const UniqueId& id, const RankId& self, const SocketAddress& address, const std::string& reason) {
  const char* const words = id.rank0_listens() ? "rank 0, which listens at {}, has not joined before the deadline"
                                               : "the root at {} did not answer before the deadline";
  return {ErrorCode::kTimeout,
          fmt::format("{}: {}: {}", self.text(), fmt::format(fmt::runtime(words), address.text()), reason),
          {}};
}

// Sends the hello of this rank to the root, and reads the answer.
Rendezvous greet_root(FrameSocket channel, const SocketAddress& address, const UniqueId& id, const RankId& self,
                      const InterfaceFilter& filter, const Deadline& deadline) {
  Rendezvous result;
  result.root_loss = fmt::format(
      "{}: {} is gone: the root at {}, which it held, closed the connection during init; its process "
      "ended or was killed",
      self.text(), id.rank0_listens() ? "rank 0" : "the process that made the id", address.text());
  result.listener = Socket::listen(own_address_towards(channel.socket().local(), filter));
  const HelloBody body = hello_of(result.listener.local(), deadline.at_ns - base::now_ns());
  channel.trust();
  channel.queue({.kind = FrameKind::kHello, .rank = self.rank, .nranks = self.nranks}, bytes_of(body));
  Frame answer;
  try {
    answer = channel.wait_for_frame({deadline.at_ns + kNotifyNs, deadline.abort});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTimeout) throw late(id, self, address, base::bare_text(error));
    if (error.code() != ErrorCode::kIo) throw;
    // The root answers before it closes a connection. If it does not, its process has ended.
    throw Error(ErrorCode::kRankLost, result.root_loss, {});
  }
  if (answer.header.kind == FrameKind::kRefused)
    base::fail(refusal_code(answer.header.tag), {}, "{}: {}", self.text(), answer.text());
  WelcomeBody welcome;
  if (answer.header.kind != FrameKind::kWelcome || !read_body(answer.body, welcome))
    base::fail(ErrorCode::kIo, {},
               "{}: the root at {} answered with a frame of kind {} and {} bytes, which is no answer", self.text(),
               address.text(), static_cast<int>(answer.header.kind), answer.body.size());
  result.session = derive(UniqueIdParts::of(id).secret, "slip session", welcome.session);
  result.successor = SocketAddress(welcome.successor);
  result.rest_ns = welcome.rest_ns;
  result.root.emplace(std::move(channel));
  return result;
}

}  // namespace

void Rendezvous::require_all_answered(const Deadline& deadline) {
  const Deadline limit = deadline.within(kNotifyNs);
  try {
    while (root->wait_for_frame(limit).header.kind != FrameKind::kAllAnswered) {}
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted) throw;
    if (error.code() == ErrorCode::kIo) throw Error(ErrorCode::kRankLost, root_loss, {});
    // kTimeout: the root lives, so the rank that does not answer is the lost one.
  }
}

Rendezvous meet_at_root(const UniqueId& id, const RankId& self, const InterfaceFilter& filter,
                        const Deadline& deadline) {
  const auto [addresses, own_name] = addresses_of(id, self, filter, deadline);
  const bool is_root = id.rank0_listens() && self.rank == 0;
  if (is_root) {
    // The other hosts may know the name by the address of any interface.
    const SocketAddress& first = addresses.front();
    const SocketAddress where =
        own_name && !first.is_loopback() ? SocketAddress::any(first.family(), first.port()) : listening_address(first);
    start_root(listen_as_root(where, self), UniqueIdParts::of(id).secret, deadline.at_ns);
  }
  std::string reason;
  std::int64_t limit = kFirstAttemptNs;
  for (std::int64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kMaxPauseNs)) {
    bool no_answer = false;
    for (const SocketAddress& address : addresses) {
      std::optional<FrameSocket> channel;
      const Deadline end = deadline.within(limit);
      try {
        channel.emplace(FrameSocket::reach(address, UniqueIdParts::of(id).secret, end));
      } catch (const Error& error) {
        // Before rank 0 has started, no process listens there, or a root that is just ending, of another communicator.
        // An attempt that timed out is repeated, because packets may have been lost.
        if (error.code() != ErrorCode::kIo && error.code() != ErrorCode::kTimeout) throw;
        no_answer = error.code() == ErrorCode::kTimeout;
        // The deadline may cut the last attempt short: then an earlier one knows why.
        if (!no_answer || end.at_ns != deadline.at_ns || reason.empty()) reason = base::bare_text(error);
        if (no_answer && base::now_ns() >= deadline.at_ns) throw late(id, self, address, reason);
        continue;
      }
      return greet_root(std::move(*channel), address, id, self, filter, deadline);
    }
    limit = std::min(2 * limit, kMaxAttemptNs);
    if (no_answer) continue;
    if (!id.rank0_listens() || is_root)
      base::fail(ErrorCode::kIo, {},
                 "{}: the root at {} does not answer: {}; the process that made the id must live until all "
                 "ranks have connected, and an id serves once",
                 self.text(), addresses.front().text(), reason);
    const Waited waited = wait_a_moment(pause, deadline);
    if (waited == Waited::kAborted)
      throw Error(ErrorCode::kAborted, self.text() + ": aborted while it looked for the root", {});
    if (waited == Waited::kTimeout) throw late(id, self, addresses.front(), reason);
  }
}

}  // namespace slip::transport
