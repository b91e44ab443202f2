#include "runtime/observers.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "base/sync.hpp"
#include "slip/error.hpp"

namespace slip {

std::atomic<int> detail::observer_count{0};

namespace {

constexpr std::size_t kSlots = 8;
std::mutex g_mutex;  // attach and detach, one at a time
std::array<std::atomic<Observer*>, kSlots> g_slots{};
std::atomic<int> g_telling{0};

}  // namespace

void tell(const Record& record) {
  // seq_cst on both, here and in detach: either detach sees this call under way, or this call sees the empty slot.
  g_telling.fetch_add(1, std::memory_order_seq_cst);
  for (auto& slot : g_slots) {
    if (Observer* observer = slot.load(std::memory_order_seq_cst)) observer->on(record);
  }
  g_telling.fetch_sub(1, std::memory_order_release);  // release: detach's owner may then destroy the observer
}

void attach(Observer& observer) {
  const std::lock_guard lock(g_mutex);
  for (auto& slot : g_slots) {
    if (slot.load(std::memory_order_relaxed)) continue;
    slot.store(&observer, std::memory_order_seq_cst);
    detail::observer_count.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  throw Error(Code::kInvalidValue, fmt::format("{} observers are attached already: detach one first", kSlots), {});
}

void detach(Observer& observer) {
  const std::lock_guard lock(g_mutex);
  for (auto& slot : g_slots) {
    if (slot.load(std::memory_order_relaxed) != &observer) continue;
    detail::observer_count.fetch_sub(1, std::memory_order_relaxed);
    slot.store(nullptr, std::memory_order_seq_cst);
    while (g_telling.load(std::memory_order_seq_cst) != 0) yield_thread();
    return;
  }
}

void forget_tellers() { g_telling.store(0, std::memory_order_relaxed); }

}  // namespace slip
