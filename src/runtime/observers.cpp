#include "runtime/observers.hpp"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/biased_lock.hpp"
#include "base/fork_mutex.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "runtime/core.hpp"
#include "runtime/exit.hpp"
#include "slip/error.hpp"

namespace slip {

std::atomic<int> detail::observer_count{0};

namespace {

class Nobody final : public Observer {
 public:
  void on(const Record&) override {}
};

constinit Nobody g_nobody;  // only its address is used: its methods are never called, so it may be gone at exit

constinit thread_local Observer* t_audience = nullptr;

constexpr std::size_t kSlots = 8;
ForkMutex g_mutex;  // guards changes of g_slots
std::array<std::atomic<Observer*>, kSlots> g_slots{};

// A thread that tells. Each has a flag of its own: one counter for all would be fought over at every op.
struct alignas(64) Teller {
  std::atomic<int> depth{0};  // calls of `on` under way; one writer
};

struct Tellers {
  ForkMutex mutex;
  std::vector<std::unique_ptr<Teller>> all;
  std::vector<Teller*> idle;  // of threads that ended
};

Tellers& tellers() {
  static Tellers* const kTellers = new Tellers;  // never destroyed: threads may end late
  return *kTellers;
}

constinit thread_local Teller* t_teller = nullptr;

// Gives the thread's teller back when it ends. What the thread still tells after that takes another one.
struct TellerReturn {
  ~TellerReturn() {
    const std::lock_guard lock(tellers().mutex);
    tellers().idle.push_back(std::exchange(t_teller, nullptr));
  }
};

Teller& take_teller() {
  Tellers& known = tellers();
  {
    const std::lock_guard lock(known.mutex);
    if (known.idle.empty()) {
      known.all.push_back(std::make_unique<Teller>());
      known.idle.push_back(known.all.back().get());
    }
    t_teller = known.idle.back();
    known.idle.pop_back();
  }
  thread_local const TellerReturn t_return;
  return *t_teller;
}

}  // namespace

void tell(const Record& record) {
  Teller& teller = t_teller ? *t_teller : take_teller();
  const int depth = teller.depth.load(std::memory_order_relaxed);
  teller.depth.store(depth + 1, std::memory_order_relaxed);
  light_fence();  // either detach sees this call under way, or this call sees the empty slot
  for (auto& slot : g_slots) {
    // acquire: the observer as it was attached.
    if (Observer* observer = slot.load(std::memory_order_acquire)) observer->on(record);
  }
  teller.depth.store(depth, std::memory_order_release);  // release: detach's owner may then destroy the observer
}

constinit Observer* const detail::nobody = &g_nobody;

void tell(const Record& record, Observer* audience) {
  if (!audience) tell(record);
  else if (audience != detail::nobody) audience->on(record);
}

PrivateScope::PrivateScope(Observer* only) : before_(t_audience), counted_(only != nullptr) {
  t_audience = only ? only : detail::nobody;
  if (counted_) detail::observer_count.fetch_add(1, std::memory_order_relaxed);  // relaxed: see observed()
}

PrivateScope::~PrivateScope() {
  if (counted_) detail::observer_count.fetch_sub(1, std::memory_order_relaxed);
  t_audience = before_;
}

Observer* current_audience() { return t_audience; }

namespace {

void take_slot(Observer& observer) {
  const std::lock_guard lock(g_mutex);
  for (auto& slot : g_slots) {
    if (slot.load(std::memory_order_relaxed)) continue;
    slot.store(&observer, std::memory_order_seq_cst);
    detail::observer_count.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  throw Error(Code::kInvalidValue, fmt::format("{} observers are attached already: detach one first", kSlots), {});
}

}  // namespace

// Legacy streams are as old as their devices, and an observer must know which they are; so must it know the names of
// streams that were opened before it came.
void attach(Observer& observer) {
  take_slot(observer);
  for (const auto& core : open_devices()) {
    if (!core->legacy || core->legacy->audience) continue;
    const auto tell_open = [&](std::uint64_t stream, Name name) {
      observer.on({.kind = RecordKind::kStreamOpen,
                   .device = core->id,
                   .stream = stream,
                   .thread = thread_index(),
                   .name = name});
    };
    tell_open(core->legacy->last_id, "legacy");
    const std::lock_guard lock(core->named_mutex);
    for (const auto& [id, name] : core->named_streams) tell_open(id, name);
  }
}

namespace {

bool leave_slot(const Observer& observer) {
  const std::lock_guard lock(g_mutex);
  for (auto& slot : g_slots) {
    if (slot.load(std::memory_order_relaxed) != &observer) continue;
    detail::observer_count.fetch_sub(1, std::memory_order_relaxed);
    slot.store(nullptr, std::memory_order_relaxed);
    return true;
  }
  return false;
}

// A thread that gets its teller later than this sees the empty slot: the mutex orders the two.
std::vector<Teller*> known_tellers() {
  std::vector<Teller*> known;
  const std::lock_guard lock(tellers().mutex);
  for (const auto& teller : tellers().all) known.push_back(teller.get());
  return known;
}

}  // namespace

// Waits for calls of the observer with no lock held: what they do, a fork for instance, may need one.
void detach(Observer& observer) {
  if (!leave_slot(observer)) return;
  heavy_fence();  // see tell()
  for (const Teller* teller : known_tellers()) {
    // acquire: pairs with the release in tell(); the owner may destroy the observer then.
    while (teller->depth.load(std::memory_order_acquire) != 0) yield_thread();
  }
}

void forget_tellers() {
  for (const auto& teller : tellers().all) teller->depth.store(0, std::memory_order_relaxed);
}

}  // namespace slip
