#include "flow/gradients/gradient_gpu.hpp"

#include <iterator>

#include "base/sync.hpp"

namespace slip::flow {
namespace {

base::Mutex& retired_mutex() {
  static base::Mutex mutex;
  return mutex;
}
// Never destroyed: at exit the CUDA runtime may be shut down already.
std::vector<Buffer>& retired() {
  static auto* const kRetired = new std::vector<Buffer>;
  return *kRetired;
}

}  // namespace

bool on_gpu(const Device& device) { return device.info().name.starts_with("cuda"); }

void meet_on_gpu(Communicator& comm, const Device& device, Here here) {
  // An allocation of 0 bytes only synchronises the ranks.
  if (on_gpu(device)) static_cast<void>(comm.allocate(0, "gradients: meeting", here));
}

void retire(std::vector<Buffer> memory) {
  const base::LockGuard lock(retired_mutex());
  std::move(memory.begin(), memory.end(), std::back_inserter(retired()));
}

void free_retired() {
  std::vector<Buffer> all;
  const base::LockGuard lock(retired_mutex());
  all.swap(retired());
}

}  // namespace slip::flow
