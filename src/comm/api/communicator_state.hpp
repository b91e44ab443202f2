// What a communicator is made of: how its ranks reach each other, the calls under way, and what went wrong.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/biased_lock.hpp"
#include "comm/api/group.hpp"
#include "comm/api/options.hpp"
#include "comm/host/shared_run.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/sim_ranks.hpp"
#include "slip/communicator.hpp"
#include "transport/bootstrap/recovery.hpp"

namespace slip {

struct Communicator::State final : PostOffice, std::enable_shared_from_this<State> {
  // How an op comes into its stream: slip::issue, or slip::enqueue for one of a plan, whose launch has checked it.
  using Door = std::uint64_t(StreamState&, const Op&);

  // `stood_for`: which device of its host's topology this rank is in the communicator that this one is made from.
  State(const Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
        std::shared_ptr<AbortFlag> abort = nullptr, int stood_for = -1);

  void set_up(int stood_for, Here here);  // what init does once the ranks know each other
  SharedRun& take_run();
  void issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here);
  void issue_letters(std::span<const Letter> letters, StreamRef stream) override;
  void check_letters(std::span<const Letter> letters, StreamRef stream) override;
  void fail(Code code, const std::string& text) noexcept override;
  std::weak_ptr<PostOffice> weak() override { return weak_from_this(); }
  StreamState& require_stream_for(std::span<const Letter> letters, StreamRef stream) const;
  bool is_shared(const Call& call) const;                  // goes through the memory that all ranks share
  Choice choice_of(const Call& call, bool explain) const;  // for those that do not
  bool moves_bytes() const { return !sim || device.options().run_functions; }
  void make_plan(const Call& asked, bool in_place, CallPlan& plan);
  // Those that follow need the lock. `op` has its ranges; it gets an exchange. A run of messages has its parcels, whose
  // addresses are put in.
  std::uint64_t start_call(const Call& call, Op& op, StreamState& stream, Door& door);
  std::uint64_t start_letters(SharedRun& run, Op& op, StreamState& stream, Door& door);
  std::uint64_t start_run(SharedRun& run, Op& op, StreamState& stream, Door& door);
  struct OwnLetters {
    std::vector<Range> out, in;  // to and from this rank itself
  };
  OwnLetters sort_letters(std::span<const Letter> letters, StreamState& state);
  SimRun& in_virtual_time(SharedRun& run);
  // Throws if the ranks could not be on this device.
  void require_device(const DeviceCore& core, std::string_view what, Here here) const;

  // The op becomes one of the plan that `stream` captures, and each launch a call of this communicator; in
  // captured_call.cpp.
  class CapturedCall;
  void capture(StreamState& stream, const Op& op, const Call& call, std::vector<Parcel> messages);

  std::optional<Error> error() const;
  void require_usable(Here here) const;
  void require_not_finalized(Here here) const;
  // In finalize.cpp.
  void finalize(Here here);
  void require_same_calls(const SetupCall& call, Here here);
  void require_all_received(const SetupCall& call, Here here);
  void drain();

  const Device device;
  const std::uint64_t world;  // of the device
  const CommunicatorOptions options;
  const Wishes wishes;
  Bootstrap bootstrap;

  std::shared_ptr<LedgerSlot> seat;
  std::shared_ptr<CallMonitor> monitor;  // its history is added to under the mutex
  std::optional<SharedHost> host;
  bool all_share = false;              // all ranks are of this host and share memory
  std::optional<SharedMemory> memory;  // only if they do
  std::mutex allocating;               // keeps the order of allocations the same on all ranks
  int stands_for = -1;                 // device of the host's topology file; -1: there is none
  std::vector<Formation> formations;   // by channel
  Site site;
  double cores_each = 1;  // of this host, by rank
  std::optional<Links> links;
  std::optional<SharedCalls> calls;
  std::shared_ptr<SimRanks> sim;  // null: in real time
  BiasedLock mutex;        // guards what follows, and keeps the order of calls the same in numbers and in the stream
  std::uint64_t turn = 1;  // of the next call of this rank
  std::uint64_t next = 1;  // number of the next call of all ranks
  std::uint64_t next_shared = 1;  // and among those through shared memory
  std::uint64_t chunks = 0;       // of these so far
  std::vector<std::unique_ptr<SharedRun>> runs;
  std::map<const SharedRun*, std::unique_ptr<SimRun>> sim_runs;
  std::vector<Range> sent, received, sorted;  // of the letters being issued; kept, so that nothing is allocated
  std::vector<Parcel> parcels;
  std::set<std::string> explained;     // SLIP_DEBUG=tune: each choice once
  std::atomic<bool> finalized{false};  // relaxed: nothing is passed with it
  mutable std::mutex error_mutex;
  mutable std::optional<Error> first_error;  // guarded by error_mutex; it stays the first
};

}  // namespace slip
