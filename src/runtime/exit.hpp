// Process exit and fork. Closing a device finishes its work; exit() drops the ops that have not started. A child of
// fork() cannot use the devices of its parent, because their threads do not exist there: every call on them throws. The
// child may open its own devices.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

namespace slip::runtime {

struct DeviceCore;

bool exiting();  // exit() has begun
namespace detail {
extern std::atomic<bool> exit_expected;  // the exit handler was registered after the last device was opened
void expect_exit();
}  // namespace detail

// Called when work is issued. From then on exiting() becomes true at exit before any static object that exists now is
// destroyed.
inline void expect_exit() {
  if (!detail::exit_expected.load(std::memory_order_relaxed)) [[unlikely]]
    detail::expect_exit();
}
// The list of open devices.
void register_device(DeviceCore& core);
void unregister_device(DeviceCore& core);
std::vector<std::shared_ptr<DeviceCore>> open_devices();

}  // namespace slip::runtime
