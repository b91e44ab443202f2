#include "nccl/handle.hpp"

#include <array>
#include <deque>

#include "base/sync.hpp"
#include "nccl/api.hpp"
#include "nccl/comm.hpp"

namespace slip::nccl {
namespace {

// The number of communicators that can exist at once. Closed slots are reused only when all slots have been used once,
// the slot closed longest ago first. A stale handle is recognised until its slot is reused.
constexpr std::size_t kSlots = 1 << 16;

constinit std::array<ncclComm, kSlots> g_slots{};

struct FreeSlots {
  base::Mutex mutex;
  std::size_t unused SLIP_GUARDED_BY(mutex) = 0;             // slots from here on were never used
  std::deque<ncclComm*> closed SLIP_GUARDED_BY(mutex) = {};  // in the order in which they were closed
};
FreeSlots& free_slots() {
  static auto* const kFree = new FreeSlots;  // never destroyed: communicators may end while the process exits
  return *kFree;
}

bool is_slot(ncclComm_t handle) {
  const auto address = reinterpret_cast<std::uintptr_t>(handle);
  const auto first = reinterpret_cast<std::uintptr_t>(g_slots.data());
  return address >= first && address < first + sizeof(g_slots) && (address - first) % sizeof(ncclComm) == 0;
}

}  // namespace

Pin Pin::find(ncclComm_t handle) noexcept {
  if (!is_slot(handle)) return {};
  std::uint32_t uses = handle->uses.load(std::memory_order_relaxed);  // relaxed: the exchange below decides
  while ((uses & ncclComm::kOpen) != 0) {
    // acquire: this thread sees the communicator that open() stored.
    if (handle->uses.compare_exchange_weak(uses, uses + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return Pin(handle);
  }
  return {};
}

Pin Pin::of(ncclComm_t handle) {
  Pin pin = find(handle);
  if (pin) [[likely]]
    return pin;
  require_pointer(handle, "comm");
  if (!is_slot(handle)) invalid_argument("comm {} is not a communicator of this library", fmt::ptr(handle));
  invalid_argument("comm {} was destroyed or aborted", fmt::ptr(handle));
}

bool Pin::close() const noexcept {
  // relaxed: the communicator itself is published and released by other operations on `uses`.
  return (slot_->uses.fetch_and(~ncclComm::kOpen, std::memory_order_relaxed) & ncclComm::kOpen) != 0;
}

void Pin::release() noexcept {
  ncclComm* const slot = std::exchange(slot_, nullptr);
  // acq_rel: all uses by other threads come before the deletion by the last one.
  if (slot->uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  delete std::exchange(slot->comm, nullptr);
  FreeSlots& slots = free_slots();
  const base::LockGuard lock(slots.mutex);
  slots.closed.push_back(slot);
}

Pin Pin::open(Comm* comm) {
  ncclComm* slot = nullptr;
  {
    FreeSlots& slots = free_slots();
    const base::LockGuard lock(slots.mutex);
    if (slots.unused < kSlots) {
      slot = &g_slots[slots.unused++];
    } else if (!slots.closed.empty()) {
      slot = slots.closed.front();
      slots.closed.pop_front();
    }
  }
  if (!slot) {
    delete comm;
    throw ApiError(ncclSystemError, fmt::format("{} communicators are open, the maximum: destroy some", kSlots));
  }
  slot->comm = comm;
  slot->uses.store(ncclComm::kOpen | 1, std::memory_order_release);  // release: publishes the communicator
  return Pin(slot);
}

void keep_error(ncclComm_t handle, const std::string& text) {
  if (const Pin comm = Pin::find(handle)) comm->keep_error(text);
}

std::string kept_error(ncclComm_t handle) {
  const Pin comm = Pin::find(handle);
  return comm ? comm->kept_error() : std::string();
}

}  // namespace slip::nccl
