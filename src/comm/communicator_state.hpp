// What a communicator is made of: how its ranks reach each other, the calls under way, and what went wrong.
#pragma once

#include <mutex>
#include <optional>

#include "base/biased_lock.hpp"
#include "comm/group.hpp"
#include "comm/options.hpp"
#include "comm/shared_run.hpp"
#include "comm/tuning.hpp"
#include "slip/communicator.hpp"
#include "transport/recovery.hpp"

namespace slip {

struct Communicator::State final : PostOffice {
  State(const Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
        std::shared_ptr<AbortFlag> abort = nullptr);

  SharedRun& take_run();
  void issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here);
  void issue_letters(std::span<const Letter> letters, StreamRef stream) override;
  void make_plan(const Call& call, bool in_place, CallPlan& plan);
  void issue_run(SharedRun& run, Name name, std::span<const Range> reads, std::span<const Range> writes,
                 StreamState& stream, Here here);

  std::optional<Error> error() const;
  void require_usable(Here here) const;
  void drain();

  const Device device;
  const CommunicatorOptions options;
  const Wishes wishes;
  Bootstrap bootstrap;

  std::shared_ptr<LedgerSeat> seat;
  std::optional<SharedHost> host;
  bool all_share = false;              // all ranks are of this host and share memory
  std::optional<SharedMemory> memory;  // only if they do
  std::mutex allocating;               // keeps the order of allocations the same on all ranks
  Formation formation;
  LinkRates rates;
  std::optional<Links> links;
  std::optional<SharedCalls> calls;
  BiasedLock mutex;        // guards what follows, and keeps the order of calls the same in numbers and in the stream
  std::uint64_t turn = 1;  // of the next call of this rank
  std::uint64_t next = 1;  // number of the next call of all ranks
  std::uint64_t next_shared = 1;  // and among those through shared memory
  std::uint64_t chunks = 0;       // of these so far
  std::vector<std::unique_ptr<SharedRun>> runs;
  std::vector<Range> sent, received;  // of the letters being issued; kept, so that nothing is allocated
  std::vector<Parcel> parcels;
  std::atomic<bool> finalized{false};  // relaxed: nothing is passed with it
  mutable std::mutex error_mutex;
  mutable std::optional<Error> first_error;  // guarded by error_mutex; it stays the first
};

}  // namespace slip
