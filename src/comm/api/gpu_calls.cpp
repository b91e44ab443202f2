#include "comm/api/gpu_calls.hpp"

#include <fmt/format.h>

#include <algorithm>

#if SLIP_HAS_CUDA
#include "comm/cuda/cuda_ranks.hpp"
#endif

namespace slip::comm {

std::unique_ptr<GpuCalls> GpuCalls::meet(transport::Bootstrap& bootstrap, const Device& device,
                                         std::span<const int> hosts, Here here) {
  const bool on_gpu = device.info().name.starts_with("cuda");
  const std::vector<char> all = bootstrap.all_gather(static_cast<char>(on_gpu ? 1 : 0));
  const auto different = std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>());
  if (different != all.end()) {
    const auto rank = different - all.begin();
    throw Error(
        Code::kUnsupported,
        fmt::format("rank {} is {} and rank {} {}: either all ranks of a communicator are on cuda devices, or "
                    "none",
                    rank, *different != 0 ? "on a GPU" : "not on a GPU", rank + 1, *different != 0 ? "is not" : "is"),
        here);
  }
  if (!on_gpu) return nullptr;
#if SLIP_HAS_CUDA
  return CudaRanks::meet(bootstrap, device, hosts, here);
#else
  static_cast<void>(hosts);
  return nullptr;  // not reached: without CUDA no such device can be opened
#endif
}

}  // namespace slip::comm
