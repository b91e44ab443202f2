// Communicator::State: one rank's side of a communicator. Communicator owns it. It turns the user's calls into ops of
// streams, keeps the first error, and compares the calls of all ranks when the communicator is finalized.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/biased_lock.hpp"
#include "comm/api/group.hpp"
#include "comm/api/rank_connections.hpp"
#include "comm/host/call_run.hpp"
#include "comm/plan/host_program.hpp"
#include "comm/sim/sim_ranks.hpp"
#include "runtime/core.hpp"

namespace slip::comm {

// The names of a communicator's ops in traces and errors: "all_reduce", or "tp.all_reduce" if the communicator is named
// "tp". They are made once, because constructing a Name looks it up in a table.
struct CallNames {
  explicit CallNames(const std::string& communicator);
  Name operator[](Collective kind) const { return calls[static_cast<std::size_t>(kind)]; }

  std::array<Name, static_cast<std::size_t>(Collective::kMessage) + 1> calls;
  Name send, recv;
};

struct KnownCall {
  Call call;
  Range to, from;
  bool writes = false, reads = false;  // the call uses `to`, `from` on this rank
  // The id of its stream's device; 0: no call is kept here. Not the address of the device: after that device is closed,
  // the next one may get its address.
  std::uint32_t device = 0;
  HostProgramBuilder program{Call{}, 0, 0, 0, 1};

  bool is(const Call& other, const Range& other_to, const Range& other_from, std::uint32_t on) const {
    return device == on && same(from, other_from) && same(to, other_to) && call == other && is_alive(reads, from) &&
           is_alive(writes, to);
  }

 private:
  static bool same(const Range& a, const Range& b) {
    return a.block == b.block && a.id == b.id && a.offset == b.offset && a.bytes == b.bytes;
  }
  // relaxed: freeing a buffer while another thread issues work on it is a race of the caller.
  static bool is_alive(bool used, const Range& range) {
    return !used || range.block->id.load(std::memory_order_relaxed) == range.id;
  }
};

// The small calls through shared memory that a rank made last. A program makes the same calls again and again, with the
// same buffers. issue_call() checks a call and chooses its program once, and reuses the result when the call is
// repeated. For 8 bytes, doing that again would take longer than the exchange itself.
class KnownCalls {
 public:
  // The call with exactly these ranges, if it is known and its buffers still exist.
  KnownCall* find(const Call& call, const Range& to, const Range& from, std::uint32_t device) {
    KnownCall& kept = calls_[index(call, to, from)];
    return kept.is(call, to, from, device) ? &kept : nullptr;
  }
  void keep(const KnownCall& call) { calls_[index(call.call, call.to, call.from)] = call; }

 private:
  static constexpr int kLog2Calls = 4;

  static std::size_t index(const Call& call, const Range& to, const Range& from) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    const std::uint64_t ranges = (from.id + from.offset) * kOdd ^ (to.id + to.offset);
    return ((ranges * kOdd ^ call.elements) + static_cast<std::uint64_t>(call.kind)) * kOdd >> (64 - kLog2Calls);
  }

  std::array<KnownCall, 1 << kLog2Calls> calls_;
};

}  // namespace slip::comm

namespace slip {

struct Communicator::State final : comm::RankConnections, comm::SendRecvIssuer, std::enable_shared_from_this<State> {
  // How an op enters its stream: runtime::issue, or runtime::enqueue for an op of a plan, whose launch has checked it.
  using Submit = std::uint64_t(runtime::StreamState&, const Op&);

  // `inherited_topology_device`: see RankConnections.
  State(const transport::Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
        std::shared_ptr<transport::AbortFlag> abort = nullptr, int inherited_topology_device = -1);
  ~State();

  void issue_call(const comm::Call& call, Range to, Range from, StreamRef stream, Here here);
  void issue_messages(std::span<const comm::PendingSendRecv> messages, StreamRef stream) override;
  void check_messages(std::span<const comm::PendingSendRecv> messages, StreamRef stream) override;
  void fail_group(const std::string& text) noexcept override;
  void fail(ErrorCode code, const std::string& text) noexcept;
  std::weak_ptr<comm::SendRecvIssuer> weak() override { return weak_from_this(); }

  std::optional<Error> error() const;
  void require_usable(Here here) const;
  void require_not_finalized(Here here) const;
  void finalize(Here here);
  void drain();  // returns when all calls of this rank have ended, with or without success

  const comm::CallNames names;
  comm::CallContext calls;
  base::Mutex allocating;  // guards no data: keeps the order of allocations the same on all ranks

 private:
  class CapturedCall;  // a call that was captured into a plan

  runtime::StreamState& require_stream_for(std::span<const comm::PendingSendRecv> messages, StreamRef stream) const;
  // Throws if ranks of this communicator cannot run on the device.
  void require_device(const runtime::DeviceCore& core, std::string_view what, Here here) const;
  // Adds the op to the plan that `stream` captures. Each launch of the plan makes a new call of this communicator.
  void capture(runtime::StreamState& stream, const Op& op, const comm::Call& call,
               std::vector<comm::UserMessage> messages);

  // `op` has its ranges; the start functions set its exchange.
  // The caller of start_messages() has put the messages into the run; start_messages() sets their addresses.
  comm::CallRun& take_run() SLIP_REQUIRES(mutex_);
  comm::SimRun& sim_run_of(comm::CallRun& run) SLIP_REQUIRES(mutex_);
  void make_plan(const comm::Call& asked, bool in_place, comm::CallPlan& plan) SLIP_REQUIRES(mutex_);
  std::uint64_t start_call(const comm::Call& call, Op& op, runtime::StreamState& stream, Submit& submit)
      SLIP_REQUIRES(mutex_);
  std::uint64_t start_messages(comm::CallRun& run, Op& op, runtime::StreamState& stream, Submit& submit)
      SLIP_REQUIRES(mutex_);
  std::uint64_t start_run(comm::CallRun& run, Op& op, runtime::StreamState& stream, Submit& submit)
      SLIP_REQUIRES(mutex_);
  bool start_known(const comm::Call& call, const Range& to, const Range& from, runtime::StreamState& stream, Here here);
  std::uint64_t start_gpu_call(const comm::Call& call, Op& op, runtime::StreamState& stream, Submit& submit)
      SLIP_REQUIRES(mutex_);
  std::uint64_t start_gpu_messages(std::vector<comm::UserMessage>& messages, Op& op, runtime::StreamState& stream,
                                   Submit& submit) SLIP_REQUIRES(mutex_);
  // Writes the call to the ledger, and takes its ticket.
  void enqueued(const runtime::StreamState& stream, const Op& op) SLIP_REQUIRES(mutex_);
  void sort_messages(std::span<const comm::PendingSendRecv> messages, runtime::StreamState& state)
      SLIP_REQUIRES(mutex_);

  // A thread holds it while it numbers and enqueues a call, so calls enter the stream in the order of their numbers.
  base::BiasedLock mutex_;
  struct Next {                    // the numbers of the next call of this rank
    std::uint64_t ticket = 1;      // counts sends and receives, too
    std::uint64_t collective = 1;  // among the collective calls; the same on all ranks
    std::uint64_t shared = 1;      // among the calls through shared memory
    std::uint64_t chunks = 0;      // of all calls through shared memory so far
  };
  Next next_ SLIP_GUARDED_BY(mutex_);
  comm::KnownCalls known_ SLIP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<comm::CallRun>> runs_ SLIP_GUARDED_BY(mutex_);
  std::map<const comm::CallRun*, std::unique_ptr<comm::SimRun>> sim_runs_ SLIP_GUARDED_BY(mutex_);
  // The sends and receives of the present issue_messages(). The vectors keep their memory, so that it allocates
  // nothing.
  struct Issued {
    std::vector<Range> sent, received, sorted;
    std::vector<Range> own_sent, own_received;  // to and from this rank itself
    std::vector<comm::UserMessage> messages;
  };
  Issued issued_ SLIP_GUARDED_BY(mutex_);
  // SLIP_DEBUG=tune: the choices that were logged, so that each is logged once.
  std::set<std::string> explained_ SLIP_GUARDED_BY(mutex_);

  std::atomic<bool> finalized_{false};  // relaxed: no other data is published with it
  mutable base::Mutex error_mutex_;
  mutable std::optional<Error> first_error_ SLIP_GUARDED_BY(error_mutex_);  // never overwritten
};

}  // namespace slip
