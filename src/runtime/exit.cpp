// Process exit and fork. See runtime/core.hpp.
#include <cstdlib>
#include <new>

#include "base/thread.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"

namespace slip::runtime {

std::atomic<bool> detail::exit_expected{false};

namespace {

std::atomic<bool> g_exiting{false};

struct Devices {
  base::ForkMutex mutex;
  std::vector<DeviceCore*> open SLIP_GUARDED_BY(mutex);
};

void after_fork_in_child();
Devices& devices() { return base::process_wide<Devices, after_fork_in_child>(); }

// A thread of the parent may have held locks of a device at the fork. The child renews the locks that its calls take
// before they are refused.
void after_fork_in_child() SLIP_NO_THREAD_SAFETY_ANALYSIS {  // the child has one thread
  for (DeviceCore* core : devices().open) {
    new (&core->fault) Sticky;
    new (&core->memory) MemoryLedger;
    core->memory.set_total(core->info.memory_bytes);
    core->forked = true;
    core->fault.put(
        {ErrorCode::kInvalidDevice, "the device was opened before fork: open another one in the child", 0, {}});
  }
  devices().open.clear();
  forget_notifiers();
}

}  // namespace

bool exiting() { return g_exiting.load(std::memory_order_relaxed); }

// Exit handlers and destructors of static objects run in reverse order of registration. The destructor of a static
// Device is registered when Device::open has returned. So this handler is registered with the first op after that, to
// run first.
//
// The C library does not handle the lock of its exit handlers at fork(). If another thread were inside atexit() at that
// moment, the child would wait for the lock for ever. The ForkMutex makes fork() wait for this thread.
void detail::expect_exit() {
  if (exit_expected.exchange(true, std::memory_order_relaxed)) return;
  const base::LockGuard lock(base::process_wide<base::ForkMutex>());
  // relaxed: the flag is a hint to stop soon; no data depends on it.
  std::atexit([] { g_exiting.store(true, std::memory_order_relaxed); });
}

void register_device(DeviceCore& core) {
  detail::exit_expected.store(false, std::memory_order_relaxed);
  const base::LockGuard lock(devices().mutex);
  devices().open.push_back(&core);
}

std::vector<std::shared_ptr<DeviceCore>> open_devices() {
  std::vector<std::shared_ptr<DeviceCore>> result;
  const base::LockGuard lock(devices().mutex);
  for (DeviceCore* core : devices().open) {
    if (auto shared = core->weak_from_this().lock()) result.push_back(std::move(shared));
  }
  return result;
}

void unregister_device(DeviceCore& core) {
  const base::LockGuard lock(devices().mutex);
  std::erase(devices().open, &core);
}

}  // namespace slip::runtime
