// Strict mode: while a kernel runs, device memory that it did not declare is inaccessible, and memory that it declared
// only as read is write-protected. A wrong declaration becomes an error that names the op and the buffer.
//
// It uses page protection and a SIGSEGV handler that jumps out of the kernel. The local objects of that kernel are not
// destroyed, which is acceptable in a debugging mode. Page protection is per process, so only one op of all strict
// devices runs at a time. A range that ends inside a page shares the protection of that page with its neighbours in the
// same buffer.
#pragma once

#include <functional>

#include "backend/cpu/lane.hpp"

namespace slip::backend {

extern std::atomic<int> strict_regions;  // number of live allocations of all strict devices
bool touches_strict_memory(PackedOp& op);

// The protection of memory while one op runs: the constructor makes the declared ranges accessible, the destructor
// makes them inaccessible again. Does nothing unless the device is strict or the op touches memory of a strict device.
class StrictScope : base::NoCopy {
 public:
  StrictScope(const Lane& lane, PackedOp& op) : op_(op), active_(lane.core->options.strict || visits(op)) {
    if (active_) [[unlikely]]
      open();
  }
  ~StrictScope() {
    if (active_) [[unlikely]]
      close();
  }

  // Calls the function; in strict mode a forbidden access becomes Error kUndeclaredAccess.
  template <class Function>
  void call(const Function& function) const {
    if (!active_) [[likely]]
      function();
    else guarded(function);
  }

 private:
  // Whether an op of another device touches memory of a strict device, for example a peer copy.
  static bool visits(PackedOp& op) {
    return strict_regions.load(std::memory_order_relaxed) > 0 && touches_strict_memory(op);
  }
  // Not analysed: a lock is held from open() to close().
  void open() SLIP_NO_THREAD_SAFETY_ANALYSIS;
  void close() SLIP_NO_THREAD_SAFETY_ANALYSIS;
  void guarded(const std::function<void()>& function) const;
  PackedOp& op_;
  bool active_;
};

// Device memory of a strict device: page-aligned, and inaccessible between ops.
void* strict_allocate(runtime::DeviceCore& core, std::size_t bytes);
void strict_deallocate(void* data, std::size_t bytes) noexcept;

}  // namespace slip::backend
