#include "comm/host/call_waiter.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"

namespace slip::comm {
namespace {

// The number of polls before the thread yields. If every rank has a core, the other rank's answer arrives sooner than a
// context switch would take. "Oversubscribed": ranks share cores.
constexpr int kSpins = 2000, kSpinsOversubscribed = 4;
// Each poll of the network is one system call for each link. A few yields suffice if the other ranks are about to send:
// they get the core at once, and no thread has to be woken. Then the thread sleeps, because kernels may need the core.
constexpr int kSpinsNet = 100, kSpinsOversubscribedNet = 1;
constexpr int kYieldsNet = 9;  // yields in a network wait before the thread sleeps
// If a network wait took longer than kSlowUs, spinning and yielding only take the core from kernels. It sets a counter
// to kSlowWaits, and each shorter wait subtracts half of that. While the counter is positive, network waits return at
// once and the thread parks. Waking a parked thread takes less than kSlowUs, so parking does not itself cause a slow
// wait. This does not apply if ranks share cores: there a yield lets other ranks run.
constexpr double kSlowUs = 1000;
constexpr int kSlowWaits = 8;
constexpr int kSpinsWithoutPause = 200;  // a CPU pause would take longer than the rest of a short wait
// Polls of the enqueuing thread, if every rank has a core. If the other ranks enqueue the call at the same time, the
// call ends here and no worker has to run it. If they are late, these polls cost about 0.4 us.
constexpr int kEnqueueLooks = 128;
// The same when all ranks have joined, and one of them still copies a block of at most 32 KiB.
constexpr int kEnqueueCopyLooks = 1000;
// How long the thread yields before it returns. A worker may have other ops to run, so it returns soon. A thread that
// waits for this very call has nothing else to run, so it yields longer, except for a network, which wakes it. If ranks
// share cores, it yields longest: the awaited rank needs time slices first.
constexpr double kYieldUs = 500, kYieldWaiterUs = 5000, kYieldOversubscribedUs = 20'000;

// If a yield took longer than kLostCoreUs, other work than ranks got the core for a whole scheduler slice. The next
// yield would lose the core again. If ranks share cores, the thread then sleeps (kSleepNs) instead of yielding. It gets
// the core when it wakes, because it has not used up its share of CPU time. If every rank has a core, the next
// kContendedWaits waits through memory spin for kSpinWaiterUs before they yield. That is longer than the other rank
// needs while it has its core.
constexpr double kLostCoreUs = 1000, kSpinWaiterUs = 1000;
constexpr int kContendedWaits = 16;
// After a network wait lost its core, the next ones sleep in poll instead of yielding. A message wakes the thread
// sooner than the scheduler would return the core to it.
constexpr int kContendedNetWaits = 1024;
constexpr std::int64_t kSleepNs = 20'000;

}  // namespace

// The number of polls before await() yields or returns.
int CallWaiter::max_polls(Kind kind, bool by_net, bool slow) const {
  if (context_.one_thread || slow) return 1;
  if (may_spin_) {
    if (context_.oversubscribed) return by_net ? kSpinsOversubscribedNet : kSpinsOversubscribed;
    return by_net ? kSpinsNet : kSpins;
  }
  if (context_.oversubscribed) return 1;
  if (kind == Kind::kPhase) return kEnqueueCopyLooks;
  const bool is_cheap = kind == Kind::kMeet || (kind == Kind::kLink && !by_net);
  return is_cheap ? kEnqueueLooks : 1;
}

bool CallWaiter::await(Kind kind, std::uint64_t value, std::uint64_t peer) {
  if (condition_.set(kind, value, peer)) failures_.restart();
  if (condition_.holds()) return over();  // often: then nothing below is needed
  const bool by_net = condition_.on_link() && !context_.links.through_memory(static_cast<int>(peer));
  const bool slow = by_net && !context_.oversubscribed && context_.running.slow_waits > 0;
  const int polls = max_polls(kind, by_net, slow);
  for (int look = 1; look < polls; ++look) {
    if (condition_.holds()) return over();
    if (look >= kSpinsWithoutPause) base::cpu_relax();
  }
  if (!may_spin_) return false;
  failures_.throw_if_failed();
  const std::uint64_t begun = base::ticks();
  if (by_net && network_wait_begun_ == 0) network_wait_begun_ = begun;
  const double yield_us = context_.one_thread || slow                 ? 0
                          : thread_ == runtime::Exchange::By::kWorker ? kYieldUs
                          : context_.oversubscribed                   ? kYieldOversubscribedUs
                          : by_net                                    ? kYieldUs
                                                                      : kYieldWaiterUs;
  const auto limit = static_cast<std::uint64_t>(yield_us * base::ticks_per_us());
  if (yield_until_holds(begun, limit, by_net)) return over();
  note_in_ledger();
  return false;
}

bool CallWaiter::await_link(Kind kind, LinkEnd& link, const Primitive& step, std::uint64_t value) {
  condition_.set_link(link, step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent);
  return await(kind, value, step.peer);
}

bool CallWaiter::await_channels(int waiting) {
  if (condition_.kind() != Kind::kChannels) condition_.set_channel(waiting);  // otherwise this wait continues
  return await(Kind::kChannels, 0, condition_.peer());
}

// Polls until the condition holds, or `limit` ticks have passed since `begun`. Lets other threads run meanwhile.
bool CallWaiter::yield_until_holds(std::uint64_t begun, std::uint64_t limit, bool by_net) {
  const bool is_running = condition_.kind() != Kind::kTicket;  // so context_.running belongs to this call
  bool contended = is_running && context_.running.contended_waits > 0;
  const bool spins = thread_ == runtime::Exchange::By::kWaiter && !context_.oversubscribed && !by_net && contended;
  if (contended && (spins || by_net)) --context_.running.contended_waits;
  const auto spin_limit = static_cast<std::uint64_t>((spins ? kSpinWaiterUs : 0) * base::ticks_per_us());
  const auto lost_ticks = static_cast<std::uint64_t>(kLostCoreUs * base::ticks_per_us());
  int yields = 0;
  bool lost_core = false;
  for (std::uint64_t now = begun; now - begun < limit; now = base::ticks()) {
    if (condition_.holds()) return true;
    if (now - begun < spin_limit) {
      base::cpu_relax();
    } else if (by_net && (contended || ++yields > kYieldsNet) && context_.links.sleep()) {
      continue;
    } else if (lost_core) {
      base::sleep_ns(kSleepNs);
    } else {
      base::yield_thread();
      if (base::ticks() - now < lost_ticks) continue;
      lost_core = context_.oversubscribed && !by_net;
      contended = is_running;
      if (is_running) context_.running.contended_waits = by_net ? kContendedNetWaits : kContendedWaits;
    }
  }
  return false;
}

void CallWaiter::note_network_wait() {
  const double us = static_cast<double>(base::ticks() - std::exchange(network_wait_begun_, 0)) / base::ticks_per_us();
  int& slow_waits = context_.running.slow_waits;
  slow_waits = us > kSlowUs ? kSlowWaits : std::max(0, slow_waits - kSlowWaits / 2);
}

bool CallWaiter::over() {
  condition_.clear();
  if (network_wait_begun_ != 0) note_network_wait();
  end_wait();
  return true;
}

// Only long waits are recorded, because reports omit shorter ones. A call that waits for its ticket has not begun; the
// ledger describes the call that has.
void CallWaiter::note_in_ledger() {
  if (condition_.kind() == Kind::kTicket) return;
  int rank = condition_.rank();
  for (int one = 0; condition_.kind() == Kind::kRoom && one < context_.nranks; ++one) {
    if (condition_.is_missing(one)) rank = one;
  }
  context_.ledger_slot.wait(rank);
  in_ledger_ = true;
}

bool CallWaiter::can_advance() noexcept {
  try {
    return failures_.has_failed() || condition_.holds();
  } catch (...) {
    return true;  // the next await() throws it again
  }
}

// Returns false if ranks share cores: there polling finds a message sooner than the two wake-ups of proxy and
// subscriber.
bool CallWaiter::subscribe(base::Subscriber& subscriber) noexcept {
  subscribed_ = !context_.oversubscribed && condition_.on_link() && context_.links.notify(subscriber);
  return subscribed_;
}

void CallWaiter::stop_notifications() noexcept {
  subscribed_ = false;
  context_.links.stop_notifying();
  context_.links.set_driven(true);
}

}  // namespace slip::comm
