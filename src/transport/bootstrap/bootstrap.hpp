// Bootstrap: the TCP connections over which the ranks of a communicator find each other and exchange messages during
// setup. Each rank sends its listening address to the root, receives the address of its successor, and connects to it;
// this closes the ring. Communicators use all_gather and messages to set up shared memory and the connections of
// transports. The bootstrap is too slow for data.
//
// Every wait has a deadline, and the timeout error names the ranks that have not joined. If a rank dies, stops or is
// cut off, its neighbours detect that within about `heartbeat.silence` and notify all ranks. Every wait then ends with
// an error that names the lost rank. During init, silence counts only at the deadline, see FailureDetector.
//
// All functions are thread-safe, but each rank must call all_gather and barrier in the same order as the others. Ranks
// may be threads of one process. A forked child must not use its parent's Bootstrap.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "slip/unique_id.hpp"
#include "transport/bootstrap/control_server.hpp"
#include "transport/job/placement.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

struct Rendezvous;

struct BootstrapOptions {
  std::chrono::milliseconds timeout{60'000};  // timeout of each call, also of the constructor
  Heartbeat heartbeat;
  std::shared_ptr<AbortFlag> abort;  // when set, it also ends the constructor; null: the Bootstrap makes its own
  // True: init does not end with the constructor, but with the call set_call({}).
  bool setup_follows = false;
};

class Bootstrap : base::NoCopy {
 public:
  // Returns when all ranks have connected and have exchanged their addresses.
  Bootstrap(const UniqueId& id, int nranks, int rank, const BootstrapOptions& options = {});

  const RankId& self() const { return self_; }
  int rank() const { return self_.rank; }
  int nranks() const { return self_.nranks; }
  const std::vector<Placement>& placements() const { return placements_; }  // indexed by rank
  const SocketAddress& address(int rank) const;                             // where the rank listens
  std::string host() const { return address(rank()).host(); }  // the address at which the others reach this rank
  std::uint64_t id() const { return id_; }                     // the same on all ranks; not secret
  // A secret that only the ranks of this bootstrap know. Each label and salt gives a different one.
  Secret derive(std::string_view label, std::span<const std::byte> salt = {}) const {
    return transport::derive(session_, label, salt);
  }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Lost, failed and departed ranks. failures().fail() sends all ranks the reason why this one failed.
  FailureTable& failures() { return server_->failures(); }
  const FailureTable& failures() const { return std::as_const(*server_).failures(); }
  // For ranks that continue after a loss, see recovery.hpp, and for the monitor that answers ask() of other ranks.
  ControlServer& server() { return *server_; }

  // Begins a setup call of the communicator. All exchanges of the call share one deadline: now plus the timeout.
  SetupCall begin(SetupKind kind) const { return begin(kind, timeout_); }
  SetupCall begin(SetupKind kind, std::chrono::milliseconds timeout) const;
  // Sets the call that exchanges belong to if they name none. kInit: init lasts until set_call({}), at most until the
  // deadline of the call. Only for init, before any other thread uses the communicator.
  void set_call(const SetupCall& call);

  // The call that an exchange which begins now belongs to, with its deadline: `call`, or the call that was set if
  // `call` is empty.
  SetupCall call_of(const SetupCall& call) const;

  // `table` has a slot for each rank. The caller fills its own slot; all_gather fills the others.
  void all_gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call);
  template <class T>
  std::vector<T> all_gather(const T& own, const SetupCall& call = {}) {
    std::vector<T> table(static_cast<std::size_t>(nranks()));
    table[static_cast<std::size_t>(rank())] = own;
    all_gather(std::as_writable_bytes(std::span(table)), sizeof(T), call);
    return table;
  }
  void barrier(const SetupCall& call = {}) { all_gather({}, 0, call); }

  // Messages between two ranks. Messages with the same tag arrive in the order in which they were sent; recv keeps
  // messages with other tags for later. A send returns when the kernel has taken the bytes.
  void send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SetupCall& call = {}) {
    server_->messages().send(rank, tag, bytes, address(rank), call_of(call).deadline_ns);
  }
  std::vector<std::byte> recv(int rank, std::uint64_t tag, const SetupCall& call = {}) {
    static_cast<void>(address(rank));
    return server_->messages().recv(rank, tag, call_of(call).deadline_ns);
  }

  // Asks the monitors of other ranks for their state. The control threads answer, even if the ranks' own threads are
  // stuck. The result omits ranks that do not answer in time. Throws nothing.
  std::map<int, std::vector<std::byte>> ask(std::span<const int> ranks, std::chrono::milliseconds timeout) const;

  // The time for which this process was stopped: waits for other ranks do not count it, see FailureDetector.
  std::int64_t suspended_ns() const { return server_->detector().suspended_ns(); }

  // Ends every present and later wait of this rank at once with kAborted, and notifies the other ranks.
  void abort() noexcept { abort_->set(); }
  bool broken() const noexcept { return broken_flag().is_set(); }  // costs one load, so polling loops may call it
  const AbortFlag& broken_flag() const { return failures().broken_flag(); }
  // Finds the cause of an error on a connection outside the bootstrap. Such a connection closes because its rank is
  // lost, or because that rank gave up when a third one was lost. Waits a moment for the notification of the cause and
  // returns it; without a notification returns `observed`.
  Error with_cause(const Error& observed) const;

 private:
  void join(Rendezvous& rendezvous, const SocketAddress& listening, const Deadline& deadline);

  const RankId self_;
  Secret session_{};
  std::uint64_t id_ = 0;
  const std::chrono::milliseconds timeout_;
  SetupCall call_;
  const std::shared_ptr<AbortFlag> abort_;
  std::unique_ptr<ControlServer> server_;
  std::vector<SocketAddress> addresses_;
  std::vector<Placement> placements_;
};

}  // namespace slip::transport
