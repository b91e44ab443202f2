// HostCalls: runs the parts of staged calls on host memory, one after the other, as calls between ranks on cpu devices.
// One thread at a time may use it. It numbers the calls when they run and adds them to the history.
#pragma once

#include <set>
#include <string>

#include "base/sync.hpp"
#include "comm/api/rank_connections.hpp"
#include "comm/host/call_run.hpp"
#include "comm/staged/staged_call.hpp"

namespace slip::comm {

class HostCalls {
 public:
  // Both must outlive this object. No other call may use the context.
  HostCalls(const RankConnections& ranks, CallContext& context) : ranks_(ranks), context_(context), run_(context) {}

  // Runs part `index` of the call; all earlier parts have run. Returns when the part has ended. Each wait for another
  // rank has the deadline of the communicator. False: the part failed, and the communicator has the error.
  bool run(const StagedCall& call, std::uint64_t index, const StagingSlot& slot);

 private:
  class Wake final : public base::Subscriber {
   public:
    void wake_up() noexcept override { parker.unpark(); }
    base::Parker parker;
  };
  void prepare(const StagedCollective& call, std::uint64_t index, const StagingSlot& slot);
  void prepare(const StagedMessages& call, std::uint64_t index, const StagingSlot& slot);
  void wait_until_it_can_advance();

  const RankConnections& ranks_;
  CallContext& context_;
  CallRun run_;
  Wake wake_;
  Signature whole_;                  // of the running call, not of one part
  std::uint64_t number_ = 0;         // of the last collective, the same on all ranks
  std::uint64_t calls_ = 0;          // the calls that this rank has begun, including sends and receives
  std::set<std::string> explained_;  // see RankConnections::plan_of
};

}  // namespace slip::comm
