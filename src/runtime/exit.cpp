#include "runtime/exit.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "base/fork_mutex.hpp"
#include "base/thread.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"

namespace slip {

std::atomic<bool> detail::exit_expected{false};

namespace {

std::atomic<bool> g_exiting{false};

struct Devices {
  ForkMutex mutex;
  std::vector<DeviceCore*> open;
};

Devices& devices() {
  static Devices* const kDevices = new Devices;
  return *kDevices;
}

// A thread of the parent may have held a lock of a device at the fork. The child needs those that its calls take before
// they are refused.
void after_fork_in_child() {
  for (DeviceCore* core : devices().open) {
    new (&core->fault) Sticky;
    new (&core->memory) MemoryLedger;
    core->memory.set_total(core->info.memory_bytes);
    core->forked = true;
    core->fault.put({Code::kInvalidDevice, "the device was opened before fork: open another one in the child", 0, {}});
  }
  devices().open.clear();
  forget_tellers();
}

void install() {
  static const bool kInstalled = [] {
    at_fork([] {}, [] {}, after_fork_in_child);
    return true;
  }();
  static_cast<void>(kInstalled);
}

}  // namespace

bool exiting() { return g_exiting.load(std::memory_order_relaxed); }

// Exit handlers and destructors of static objects run in reverse order. That of a static Device is registered when its
// opening has returned; so the handler is registered at the first op after that, or it would come too late.
//
// The C library's lock of its exit handlers is not handled at fork: a child of a fork that came while another thread
// was in atexit() would wait for it for ever. So a fork waits until no thread of ours is in there.
void detail::expect_exit() {
  if (exit_expected.exchange(true, std::memory_order_relaxed)) return;
  static ForkMutex* const kMutex = new ForkMutex;
  const std::lock_guard lock(*kMutex);
  std::atexit([] { g_exiting.store(true, std::memory_order_relaxed); });  // relaxed: a hint to stop soon
}

void register_device(DeviceCore& core) {
  install();
  detail::exit_expected.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(devices().mutex);
  devices().open.push_back(&core);
}

std::vector<std::shared_ptr<DeviceCore>> open_devices() {
  std::vector<std::shared_ptr<DeviceCore>> result;
  const std::lock_guard lock(devices().mutex);
  for (DeviceCore* core : devices().open) {
    if (auto shared = core->weak_from_this().lock()) result.push_back(std::move(shared));
  }
  return result;
}

void unregister_device(DeviceCore& core) {
  const std::lock_guard lock(devices().mutex);
  std::erase(devices().open, &core);
}

}  // namespace slip
