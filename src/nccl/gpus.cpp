#include "nccl/gpus.hpp"

#include <limits>

#include "base/env.hpp"
#include "nccl/api.hpp"

namespace slip::nccl {

#if !defined(SLIP_HAS_CUDA)
int cuda_gpu_count() noexcept { return 0; }
int cuda_current_gpu() { return 0; }
void cuda_set_current_gpu(int) noexcept {}
PointerOwner cuda_owner_of(const void*) { return {}; }
std::uint64_t cuda_stream_id(CUstream_st*) { return 0; }
#endif

namespace {

// The wrapped addresses begin after the first page, which is never mapped. So a null pointer plus an offset is refused.
constexpr std::uintptr_t kFirstAddress = 4096;
constexpr std::size_t kAddressBytes = std::numeric_limits<std::ptrdiff_t>::max() - kFirstAddress;

int find_gpus() {
  const std::string wanted = base::env_text("SLIP_NCCL_DEVICE");
  if (wanted == "cpu") return 0;
  const int count = cuda_gpu_count();
  if (wanted.empty() || wanted == "auto" || (wanted == "cuda" && count > 0)) return count;
  invalid_usage("SLIP_NCCL_DEVICE={}: it must be auto, cpu, or cuda on a machine with a GPU ({} found)", wanted, count);
}

Device open_device(int gpu) {
  if (!uses_gpus()) return Device::open("cpu", {.compute_workers = 1});  // it runs collectives only
  if (gpu < 0 || gpu >= gpu_count())
    invalid_argument("there is no GPU {}: this process sees {} GPUs", gpu, gpu_count());
  return Device::open(fmt::format("cuda:{}", gpu));
}

}  // namespace

int gpu_count() {
  static const int kCount = find_gpus();
  return kCount;
}

bool uses_gpus() { return gpu_count() > 0; }

int current_gpu() { return uses_gpus() ? cuda_current_gpu() : 0; }

std::uint64_t stream_id(CUstream_st* native) { return uses_gpus() ? cuda_stream_id(native) : 0; }

// If the GPU cannot be queried, because earlier work has failed, nothing is restored. The next call reports the error.
KeepCurrentGpu::KeepCurrentGpu() noexcept : gpu_(-1) {
  try {
    if (gpu_count() > 1) gpu_ = current_gpu();
  } catch (const std::exception&) {}
}

void KeepCurrentGpu::restore() const noexcept { cuda_set_current_gpu(gpu_); }

RankDevice::RankDevice(int gpu)
    : gpu_(gpu),
      device_(open_device(gpu)),
      addresses_(device_.wrap(reinterpret_cast<void*>(kFirstAddress), kAddressBytes,
                              uses_gpus() ? MemoryKind::kDevice : MemoryKind::kPinned, Name("memory of the caller"))) {}

void RankDevice::require_accessible(const void* pointer, const char* name) const {
  const PointerOwner owner = cuda_owner_of(pointer);
  if (!owner.is_accessible)
    invalid_argument("{} {} is ordinary host memory: GPU {} of the communicator cannot access it", name, pointer, gpu_);
  if (owner.gpu >= 0 && owner.gpu != gpu_)
    invalid_argument("{} {} is memory of GPU {}: the communicator is on GPU {}", name, pointer, owner.gpu, gpu_);
}

Range RankDevice::range(const void* pointer, std::size_t bytes, const char* name) const {
  require_pointer(pointer, name);
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address < kFirstAddress || address - kFirstAddress > kAddressBytes ||
      bytes > kAddressBytes - (address - kFirstAddress))
    invalid_argument("{} {} with {} bytes is not a valid range of addresses", name, pointer, bytes);
  if (uses_gpus()) require_accessible(pointer, name);
  return {addresses_.range().block, addresses_.range().id, address - kFirstAddress, bytes};
}

}  // namespace slip::nccl
