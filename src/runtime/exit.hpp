// Process exit and fork. Closing a device finishes its work; exit drops what has not started; a child of fork cannot
// use the devices of its parent (their threads do not exist there), every call on them says so, and it may open its
// own.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

namespace slip {

struct DeviceCore;

bool exiting();  // exit() has begun
namespace detail {
extern std::atomic<bool> exit_expected;  // the handler was registered after the last device opened
void expect_exit();
}  // namespace detail

// Work is issued: from now on exiting() becomes true before any static object of now is destroyed.
inline void expect_exit() {
  if (!detail::exit_expected.load(std::memory_order_relaxed)) [[unlikely]]
    detail::expect_exit();
}
void register_device(DeviceCore& core);    // from opening
void unregister_device(DeviceCore& core);  // to closing
std::vector<std::shared_ptr<DeviceCore>> open_devices();

}  // namespace slip
