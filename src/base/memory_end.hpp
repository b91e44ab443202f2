// Notification that memory is about to be freed, for code that keeps addresses. A network adapter holds the physical
// pages of memory that is registered with it. If the memory is freed, and later memory gets the same addresses, the
// adapter would still access the old pages. So the registration must end with the memory.
//
// The runtime notifies of the memory of every Buffer, also of a wrapped one, whose owner may free it afterwards. If a
// program has wrapped all addresses in one Buffer, each call of a communicator notifies of its memory when it is done.
// Other memory that ranks send from or receive into notifies by NotifyingAllocator.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace slip::base {

// Called by the thread that frees the memory, before it does so. It may take locks, but must free no such memory.
using MemoryEndListener = void (*)(const void* data, std::size_t bytes) noexcept;

namespace detail {
inline constinit std::atomic<MemoryEndListener> memory_end_listener{nullptr};
}  // namespace detail

// There is one listener in a process. It stays until the process ends.
inline void set_memory_end_listener(MemoryEndListener listener) {
  // release: a thread that sees the listener sees what it needs.
  detail::memory_end_listener.store(listener, std::memory_order_release);
}

inline void notify_memory_end(const void* data, std::size_t bytes) noexcept {
  // acquire: pairs with the release in set_memory_end_listener().
  const MemoryEndListener listener = detail::memory_end_listener.load(std::memory_order_acquire);
  if (listener && bytes > 0) listener(data, bytes);
}

template <class T>
struct NotifyingAllocator : std::allocator<T> {
  void deallocate(T* data, std::size_t count) noexcept {
    notify_memory_end(data, count * sizeof(T));
    std::allocator<T>::deallocate(data, count);
  }
};

}  // namespace slip::base
