#include "flow/gradients/gradient_gpu.hpp"

#include <iterator>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip::flow {
namespace {

struct Retired {
  base::Mutex mutex;
  std::vector<Buffer> memory SLIP_GUARDED_BY(mutex);
};
// Never destroyed: at exit the CUDA runtime may be shut down already.
Retired& retired() { return base::process_wide<Retired>(); }

}  // namespace

bool on_gpu(const Device& device) { return device.info().name.starts_with("cuda"); }

void meet_on_gpu(Communicator& comm, const Device& device, Here here) {
  // An allocation of 0 bytes only synchronises the ranks.
  if (on_gpu(device)) static_cast<void>(comm.allocate(0, "gradients: meeting", here));
}

void retire(std::vector<Buffer> memory) {
  const base::LockGuard lock(retired().mutex);
  std::move(memory.begin(), memory.end(), std::back_inserter(retired().memory));
}

void free_retired() {
  std::vector<Buffer> all;
  const base::LockGuard lock(retired().mutex);
  all.swap(retired().memory);
}

}  // namespace slip::flow
