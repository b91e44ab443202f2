// Communicator::State: one rank's side of a communicator. Communicator owns it. It turns the user's calls into ops of
// streams, keeps the first error, and compares the calls of all ranks when the communicator is finalized.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/biased_lock.hpp"
#include "comm/api/group.hpp"
#include "comm/api/rank_connections.hpp"
#include "comm/host/call_run.hpp"
#include "comm/sim/sim_ranks.hpp"

namespace slip {

// The names of a communicator's ops in traces and errors: "all_reduce", or "tp.all_reduce" if the communicator is named
// "tp". They are made once, because constructing a Name looks it up in a table.
class CallNames {
 public:
  explicit CallNames(const std::string& communicator);
  Name operator[](Collective kind) const { return names_[static_cast<std::size_t>(kind)]; }
  Name send() const { return send_; }
  Name recv() const { return recv_; }

 private:
  std::array<Name, static_cast<std::size_t>(Collective::kMessage) + 1> names_;
  Name send_, recv_;
};

struct Communicator::State final : RankConnections, SendRecvIssuer, std::enable_shared_from_this<State> {
  // How an op enters its stream: slip::issue, or slip::enqueue for an op of a plan, whose launch has checked it.
  using Submit = std::uint64_t(StreamState&, const Op&);

  // `inherited_topology_device`: see RankConnections.
  State(const Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
        std::shared_ptr<AbortFlag> abort = nullptr, int inherited_topology_device = -1);

  void issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here);
  void issue_messages(std::span<const PendingSendRecv> messages, StreamRef stream) override;
  void check_messages(std::span<const PendingSendRecv> messages, StreamRef stream) override;
  void fail(Code code, const std::string& text) noexcept override;
  std::weak_ptr<SendRecvIssuer> weak() override { return weak_from_this(); }

  std::optional<Error> error() const;
  void require_usable(Here here) const;
  void require_not_finalized(Here here) const;
  void finalize(Here here);
  void drain();  // returns when all calls of this rank have ended, with or without success

  const CallNames names;
  CallContext calls;
  std::mutex allocating;  // keeps the order of allocations the same on all ranks

 private:
  class CapturedCall;  // a call that was captured into a plan

  StreamState& require_stream_for(std::span<const PendingSendRecv> messages, StreamRef stream) const;
  // Throws if ranks of this communicator cannot run on the device.
  void require_device(const DeviceCore& core, std::string_view what, Here here) const;
  // Adds the op to the plan that `stream` captures. Each launch of the plan makes a new call of this communicator.
  void capture(StreamState& stream, const Op& op, const Call& call, std::vector<UserMessage> messages);

  // The caller of the following functions holds `mutex`. `op` has its ranges; the start functions set its exchange. The
  // caller of start_messages() has put the messages into the run; start_messages() sets their addresses.
  CallRun& take_run();
  SimRun& sim_run_of(CallRun& run);
  bool moves_bytes() const { return !sim || device.options().run_functions; }
  void make_plan(const Call& asked, bool in_place, CallPlan& plan);
  std::uint64_t start_call(const Call& call, Op& op, StreamState& stream, Submit& submit);
  std::uint64_t start_messages(CallRun& run, Op& op, StreamState& stream, Submit& submit);
  std::uint64_t start_run(CallRun& run, Op& op, StreamState& stream, Submit& submit);
  struct OwnMessages {
    std::vector<Range> out, in;  // to and from this rank itself
  };
  OwnMessages sort_messages(std::span<const PendingSendRecv> messages, StreamState& state);

  // Guards the members up to `explained`. A thread holds it while it numbers and enqueues a call, so calls enter the
  // stream in the order of their numbers.
  BiasedLock mutex;
  std::uint64_t ticket = 1;       // of the next call of this rank; counts sends and receives, too
  std::uint64_t next = 1;         // number of the next collective call, the same on all ranks
  std::uint64_t next_shared = 1;  // number of the next call through shared memory
  std::uint64_t chunks = 0;       // of all calls through shared memory so far
  std::vector<std::unique_ptr<CallRun>> runs;
  std::map<const CallRun*, std::unique_ptr<SimRun>> sim_runs;
  // The sends and receives of the present issue_messages(). The vectors keep their memory, so that it allocates
  // nothing.
  struct Issued {
    std::vector<Range> sent, received, sorted;
    std::vector<UserMessage> messages;
  };
  Issued issued;
  std::set<std::string> explained;  // SLIP_DEBUG=tune: the choices that were logged, so that each is logged once

  std::atomic<bool> finalized{false};  // relaxed: no other data is published with it
  mutable std::mutex error_mutex;
  mutable std::optional<Error> first_error;  // guarded by error_mutex; never overwritten
};

}  // namespace slip
