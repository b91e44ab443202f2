// Memory: allocated by the caller's device, or registered by the caller.
#include <map>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "nccl/api.hpp"
#include "nccl/comm.hpp"

namespace slip::nccl {
namespace {

// Memory from ncclMemAlloc, by address. It belongs to devices without streams, so that freeing it waits for no call;
// the caller frees it when the calls that use it are done.
struct Allocations {
  base::Mutex mutex;
  std::map<int, RankDevice> devices SLIP_GUARDED_BY(mutex);  // by GPU
  std::map<const void*, Buffer> buffers SLIP_GUARDED_BY(mutex);
};
Allocations& allocations() { return base::process_wide<Allocations>(); }  // used until the process exits

}  // namespace
}  // namespace slip::nccl

using namespace slip::nccl;

SLIP_NCCL_API(ncclResult_t, ncclMemAlloc, void** ptr, size_t size) {
  return run_api("ncclMemAlloc", nullptr, [&] {
    require_pointer(ptr, "ptr");
    *ptr = nullptr;
    if (size == 0) return ncclSuccess;
    const KeepCurrentGpu keep;
    const slip::MemoryKind kind = uses_gpus() ? slip::MemoryKind::kDevice : slip::MemoryKind::kPinned;
    const int gpu = current_gpu();
    Allocations& all = allocations();
    const slip::base::LockGuard lock(all.mutex);
    const RankDevice& device = all.devices.try_emplace(gpu, gpu).first->second;
    slip::Buffer buffer = device.device().alloc(size, kind, slip::Name("ncclMemAlloc"));
    void* const data = buffer.native();
    all.buffers.emplace(data, std::move(buffer));
    *ptr = data;
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclMemFree, void* ptr) {
  if (!ptr) return ncclSuccess;
  return run_api("ncclMemFree", nullptr, [&] {
    const KeepCurrentGpu keep;
    slip::Buffer buffer;  // freed without the lock: it waits for the work of its device
    Allocations& all = allocations();
    const slip::base::LockGuard lock(all.mutex);
    const auto found = all.buffers.find(ptr);
    if (found == all.buffers.end()) invalid_argument("ptr {} is not from ncclMemAlloc, or was freed", ptr);
    buffer = std::move(found->second);
    all.buffers.erase(found);
    return ncclSuccess;
  });
}

// Slipstream finds out by itself which memory other ranks can access, so a registration changes nothing.
SLIP_NCCL_API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return run_api("ncclCommRegister", comm, [&] {
    const Pin pin = Pin::of(comm);
    require_pointer(handle, "handle");
    *handle = nullptr;
    pin->require_ready();
    if (size == 0) invalid_argument("size is 0");
    const KeepCurrentGpu keep;
    static_cast<void>(pin->device().range(buff, size, "buff"));
    *handle = pin->tables().registrations.add();
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void* handle) {
  return run_api("ncclCommDeregister", comm, [&] {
    const Pin pin = Pin::of(comm);
    if (!pin->tables().registrations.remove(handle))
      invalid_argument("handle {} is no registration of this communicator", handle);
    return ncclSuccess;
  });
}
