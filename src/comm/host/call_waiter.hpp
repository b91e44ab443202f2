// CallWaiter: how the thread that runs a call waits for other ranks. The thread spins, then yields, then returns; the
// call continues later, perhaps in another thread. CallWaiter records long waits in the ledger. ProgramRunner owns it.
#pragma once

#include <cstdint>

#include "base/sync.hpp"
#include "comm/host/failure_check.hpp"
#include "comm/host/wait_condition.hpp"
#include "runtime/exchange.hpp"

namespace slip::comm {

class CallWaiter : base::NoCopy {  // its parts refer to each other
 public:
  using Kind = WaitCondition::Kind;

  CallWaiter(CallContext& context, const ActiveCall& call)
      : context_(context), condition_(context, call), failures_(context, call, condition_) {}

  // Before a call begins.
  void reset() {
    condition_.clear();
    failures_.restart();
    network_wait_begun_ = 0;
  }
  // From now on `thread` runs the call.
  void set_thread(runtime::Exchange::By thread) { thread_ = thread; }
  // Whether the thread may spin and yield. If not, it polls a few times and returns.
  void set_may_spin(bool may_spin) { may_spin_ = may_spin; }
  bool may_spin() const { return may_spin_; }

  // True: the condition holds. False: the thread has waited long enough; calling it again with the same arguments
  // continues the wait. Throws if the condition can no longer hold.
  bool await(Kind kind, std::uint64_t value, std::uint64_t peer = kAllPeers);
  bool await_link(Kind kind, LinkEnd& link, const Primitive& step, std::uint64_t value);
  bool await_channels(int waiting);  // until any channel can run; `waiting`: a channel that cannot
  // Whether await() would return true, or throw.
  bool can_advance() noexcept;
  // Clears the record of a wait in the ledger.
  void end_wait() {
    if (in_ledger_) context_.ledger_slot.wait_over();
    in_ledger_ = false;
  }

  // Until unsubscribe(), the links of the call wake the subscriber when can_advance() may have changed. Returns false
  // if they cannot wake it.
  bool subscribe(base::Subscriber& subscriber) noexcept;
  void unsubscribe() noexcept {
    if (subscribed_) stop_notifications();
  }

  const FailureCheck& failures() const { return failures_; }

 private:
  int max_polls(Kind kind, bool by_net, bool slow) const;
  bool yield_until_holds(std::uint64_t begun, std::uint64_t limit, bool by_net);
  void stop_notifications() noexcept;
  bool over();
  void note_network_wait();
  void note_in_ledger();

  CallContext& context_;
  WaitCondition condition_;
  FailureCheck failures_;
  bool may_spin_ = true;
  runtime::Exchange::By thread_ = runtime::Exchange::By::kWorker;
  bool in_ledger_ = false;                // the ledger says that this rank waits
  bool subscribed_ = false;               // the links wake a subscriber
  std::uint64_t network_wait_begun_ = 0;  // in ticks(), if a wait for the network has begun to yield; otherwise 0
};

}  // namespace slip::comm
