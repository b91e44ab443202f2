// Bootstrap: how the ranks of a communicator get to know each other and talk while they set up, over TCP. Every rank
// tells the root where it listens, learns where its successor is, and the ring is closed. What is set up afterwards
// (shared memory, connections of transports) is agreed over all_gather and messages; for data it is too slow.
//
// Every wait has a deadline, and the error says which ranks did not come. While it lives, a rank that dies, stops or is
// cut off is noticed within about `heartbeat.silence` and told to all; every wait then ends with its number.
//
// All functions are thread-safe, but each rank must call all_gather and barrier in the same order as the others. Ranks
// may be threads of one process. Do not use one over fork.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slip/unique_id.hpp"
#include "transport/bootstrap/switchboard.hpp"
#include "transport/job/placement.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip {

struct Meeting;

struct BootstrapOptions {
  std::chrono::milliseconds timeout{60'000};  // of each call, the constructor among them
  std::string interface;                      // a rule as in SLIP_SOCKET_IFNAME, which is asked when this is empty
  Heartbeat heartbeat;
  std::shared_ptr<AbortFlag> abort;  // ends also the constructor; without one it makes its own
};

class Bootstrap {
 public:
  // Returns when all ranks are here and know each other.
  Bootstrap(const UniqueId& id, int nranks, int rank, const BootstrapOptions& options = {});
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  const std::vector<Placement>& placements() const { return placements_; }  // of all ranks
  const SocketAddress& address(int rank) const;                             // where the rank listens
  std::string host() const { return address(rank_).host(); }  // the address at which the others reach this rank
  std::uint64_t id() const { return id_; }                    // the same on all ranks, and no secret
  // A secret that all ranks of this bootstrap know, and nobody else; one for each label and salt.
  Secret derive(std::string_view label, std::span<const std::byte> salt = {}) const {
    return slip::derive(session_, label, salt);
  }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const AbortFlag& abort_flag() const { return *abort_; }
  Switchboard& switchboard() { return *switchboard_; }  // for who goes on after a loss, see recovery.hpp

  // A call of the communicator whose exchanges have one deadline together, the usual timeout from now.
  SetupCall begin(SetupKind kind) const { return begin(kind, timeout_); }
  SetupCall begin(SetupKind kind, std::chrono::milliseconds timeout) const;
  // What exchanges belong to that name no call; {}: to none. For init, when no other thread has the communicator yet.
  void set_call(const SetupCall& call) { call_ = call; }

  // `table` has a slot for each rank; this rank's is given, the others are filled.
  void all_gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call);
  template <class T>
  std::vector<T> all_gather(const T& own, const SetupCall& call) {
    std::vector<T> table(static_cast<std::size_t>(nranks_));
    table[static_cast<std::size_t>(rank_)] = own;
    all_gather(std::as_writable_bytes(std::span(table)), sizeof(T), call);
    return table;
  }
  template <class T>
  std::vector<T> all_gather(const T& own) {
    return all_gather(own, call_);
  }
  void barrier() { barrier(call_); }
  void barrier(const SetupCall& call) { all_gather({}, 0, call); }
  void barrier(std::chrono::milliseconds timeout);

  // Between two ranks. Messages of one tag come in the order in which they were sent; those of other tags are kept. A
  // send returns when the system has taken the bytes.
  void send(int rank, std::uint64_t tag, std::span<const std::byte> bytes) { send(rank, tag, bytes, call_); }
  void send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SetupCall& call);
  std::vector<std::byte> recv(int rank, std::uint64_t tag) { return recv(rank, tag, call_); }
  std::vector<std::byte> recv(int rank, std::uint64_t tag, const SetupCall& call);
  std::vector<std::byte> recv(int rank, std::uint64_t tag, std::chrono::milliseconds timeout);

  // What others are doing, from their ledgers, whatever their own threads are stuck in; who gives no answer in time is
  // left out. Throws nothing.
  std::map<int, std::vector<std::byte>> ask(std::span<const int> ranks, std::chrono::milliseconds timeout) const;
  // Answers for this rank when it is asked, and looks after it now and then; nullptr: no longer.
  void set_witness(std::shared_ptr<Witness> witness) { switchboard_->set_witness(std::move(witness)); }

  // Tells all ranks on all hosts why this one failed: broken() is true for them, and their waits end with this code and
  // text. Does not wait. Only the first failure counts; of several at once the lowest rank's.
  void fail(Code code, std::string_view text) { switchboard_->fail(code, text); }
  std::optional<RankFailure> failure() const { return switchboard_->failure(); }
  bool has_left(int rank) const {  // in peace; one load as long as nobody has
    return switchboard_->somebody_left() && switchboard_->has_left(rank);
  }

  // Ends every wait of this rank at once with kAborted, for good; the other ranks are told that it gave up.
  void abort() noexcept { abort_->set(); }
  bool broken() const noexcept { return switchboard_->broken(); }  // one load: for loops that wait for others
  const AbortFlag& broken_flag() const { return switchboard_->broken_flag(); }
  void throw_if_broken() const { switchboard_->throw_if_broken(); }
  std::optional<Loss> lost() const;  // the first rank that was lost, whoever noticed it
  // A connection beside the bootstrap that closed is only a consequence: the rank is lost, or gave up because another
  // one is. Waits a moment for the failure detector, and returns what it says; else `met`.
  Error with_cause(const Error& met) const;
  std::int64_t deadline_of(const SetupCall& call) const;  // of an exchange that begins now
  const SetupCall& call() const { return call_; }

 private:
  void join(Meeting& meeting, const SocketAddress& listening, const Patience& patience);

  const int rank_, nranks_;
  Secret session_{};
  std::uint64_t id_ = 0;
  const std::chrono::milliseconds timeout_;
  SetupCall call_;
  const std::shared_ptr<AbortFlag> abort_;
  std::unique_ptr<Switchboard> switchboard_;
  std::vector<SocketAddress> addresses_;
  std::vector<Placement> placements_;
};

}  // namespace slip
