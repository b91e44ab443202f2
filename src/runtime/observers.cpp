#include "runtime/observers.hpp"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/biased_lock.hpp"
#include "base/fail.hpp"
#include "base/thread.hpp"
#include "base/wait.hpp"
#include "runtime/core.hpp"

namespace slip::runtime {

std::atomic<int> detail::observer_count{0};

namespace {

class Nobody final : public Observer {
 public:
  void on(const Record&) override {}
};

constinit Nobody g_nobody;  // only its address is used, so it may be destroyed at exit

constinit thread_local Observer* t_audience = nullptr;

constexpr std::size_t kSlots = 8;
base::ForkMutex g_mutex;  // guards no data: one thread at a time changes g_slots, which others read
std::array<std::atomic<Observer*>, kSlots> g_slots{};

// The state of a thread that notifies observers. Each thread has its own counter: with a common one all threads would
// contend for its cache line with every op.
struct alignas(64) Notifier {
  std::atomic<int> depth{0};  // nested calls of Observer::on; one writer
};

struct Notifiers {
  base::ForkMutex mutex;
  std::vector<std::unique_ptr<Notifier>> all SLIP_GUARDED_BY(mutex);
  std::vector<Notifier*> idle SLIP_GUARDED_BY(mutex);  // of threads that ended
};

Notifiers& notifiers() { return base::process_wide<Notifiers>(); }

constinit thread_local Notifier* t_notifier = nullptr;

// Returns the notifier of a thread that ends. If the thread notifies observers even later, it takes another one.
struct NotifierReturn {
  ~NotifierReturn() {
    const base::LockGuard lock(notifiers().mutex);
    notifiers().idle.push_back(std::exchange(t_notifier, nullptr));
  }
};

Notifier& take_notifier() {
  Notifiers& known = notifiers();
  {
    const base::LockGuard lock(known.mutex);
    if (known.idle.empty()) {
      known.all.push_back(std::make_unique<Notifier>());
      known.idle.push_back(known.all.back().get());
    }
    t_notifier = known.idle.back();
    known.idle.pop_back();
  }
  thread_local const NotifierReturn t_return;
  return *t_notifier;
}

void take_slot(Observer& observer) {
  const base::LockGuard lock(g_mutex);
  for (auto& slot : g_slots) {
    if (slot.load(std::memory_order_relaxed)) continue;
    slot.store(&observer, std::memory_order_release);  // release: notify() sees the constructed observer
    detail::observer_count.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  base::fail(ErrorCode::kInvalidValue, {}, "{} observers are attached already: detach one first", kSlots);
}

bool leave_slot(const Observer& observer) {
  const base::LockGuard lock(g_mutex);
  for (auto& slot : g_slots) {
    if (slot.load(std::memory_order_relaxed) != &observer) continue;
    detail::observer_count.fetch_sub(1, std::memory_order_relaxed);
    slot.store(nullptr, std::memory_order_relaxed);  // relaxed: the fence in detach_observer() orders it
    return true;
  }
  return false;
}

// A thread that gets its notifier after this call sees the empty slot, because the mutex orders the two.
std::vector<Notifier*> known_notifiers() {
  std::vector<Notifier*> known;
  const base::LockGuard lock(notifiers().mutex);
  for (const auto& notifier : notifiers().all) known.push_back(notifier.get());
  return known;
}

}  // namespace

void notify(const Record& record) {
  Notifier& notifier = t_notifier ? *t_notifier : take_notifier();
  const int depth = notifier.depth.load(std::memory_order_relaxed);
  notifier.depth.store(depth + 1, std::memory_order_relaxed);
  base::light_fence();  // either detach_observer() sees this call in progress, or this call sees the empty slot
  for (auto& slot : g_slots) {
    // acquire: observes the constructed observer that attach_observer() stored.
    if (Observer* observer = slot.load(std::memory_order_acquire)) observer->on(record);
  }
  // release: pairs with the acquire in detach_observer(), after which the caller may destroy the observer.
  notifier.depth.store(depth, std::memory_order_release);
}

constinit Observer* const detail::kNobody = &g_nobody;

void notify(const Record& record, Observer* audience) {
  if (!audience) notify(record);
  else if (audience != detail::kNobody) audience->on(record);
}

void notify(Record&& record, Observer* audience) {
  record.thread = base::thread_index();
  notify(std::as_const(record), audience);
}

PrivateScope::PrivateScope(Observer* only) : before_(t_audience), counted_(only != nullptr) {
  t_audience = only ? only : detail::kNobody;
  if (counted_) detail::observer_count.fetch_add(1, std::memory_order_relaxed);  // relaxed: see observed()
}

PrivateScope::~PrivateScope() {
  if (counted_) detail::observer_count.fetch_sub(1, std::memory_order_relaxed);
  t_audience = before_;
}

Observer* current_audience() { return t_audience; }

void forget_notifiers() SLIP_NO_THREAD_SAFETY_ANALYSIS {  // in a child of fork(), which has one thread
  for (const auto& notifier : notifiers().all) notifier->depth.store(0, std::memory_order_relaxed);
}

}  // namespace slip::runtime

namespace slip {
using namespace runtime;

// The new observer gets a record of each stream that was opened earlier, if it is a legacy stream or has a name.
void attach_observer(Observer& observer) {
  take_slot(observer);
  for (const auto& core : runtime::open_devices()) {
    if (!core->legacy || core->legacy->audience) continue;
    const auto notify_open = [&](std::uint64_t stream, Name name) {
      observer.on({.kind = RecordKind::kStreamOpen,
                   .device = core->id,
                   .stream = stream,
                   .thread = base::thread_index(),
                   .name = name});
    };
    notify_open(core->legacy->last_id, "legacy");
    core->named_streams.for_each(notify_open);
  }
}

// Waits for running calls of the observer and holds no lock meanwhile, because such a call may need the lock, for
// instance to fork.
void detach_observer(Observer& observer) {
  if (!leave_slot(observer)) return;
  base::heavy_fence();  // see notify()
  for (const Notifier* notifier : known_notifiers()) {
    // acquire: pairs with the release in notify(); afterwards the caller may destroy the observer.
    for (base::Backoff wait(base::kYieldWait); notifier->depth.load(std::memory_order_acquire) != 0; wait.pause()) {}
  }
}

}  // namespace slip
