#include "comm/api/gpu_calls.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/env.hpp"
#include "comm/delegate/nccl_library.hpp"

#if SLIP_HAS_CUDA
#include "comm/cuda/cuda_hosts.hpp"
#include "comm/cuda/cuda_ranks.hpp"
#include "comm/cuda/nccl_ranks.hpp"
#endif

namespace slip::comm {
namespace {

constexpr char kOnGpu = 1, kNccl = 2;  // flags that each rank sends to the others: on a GPU; SLIP_NCCL asks for NCCL

}  // namespace

std::unique_ptr<GpuCalls> GpuCalls::meet(transport::Bootstrap& bootstrap, const Device& device,
                                         std::span<const int> hosts, bool deterministic, Here here) {
  const bool on_gpu = device.info().name.starts_with("cuda");
  const bool asks_for_nccl = on_gpu && nccl_request_of(base::env().nccl) != NcclRequest::kNone;
  std::vector<char> all = bootstrap.all_gather(static_cast<char>((on_gpu ? kOnGpu : 0) | (asks_for_nccl ? kNccl : 0)));
  const bool any_nccl = std::any_of(all.begin(), all.end(), [](char flags) { return (flags & kNccl) != 0; });
  for (char& flags : all) flags &= kOnGpu;
  const auto different = std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>());
  if (different != all.end()) {
    const auto rank = different - all.begin();
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("rank {} is {} and rank {} {}: either all ranks of a communicator are on cuda devices, or "
                    "none",
                    rank, *different != 0 ? "on a GPU" : "not on a GPU", rank + 1, *different != 0 ? "is not" : "is"),
        here);
  }
  if (!on_gpu) return nullptr;
#if SLIP_HAS_CUDA
  if (any_nccl) {
    if (std::unique_ptr<GpuCalls> delegated = NcclRanks::meet(bootstrap, device, deterministic, here)) return delegated;
  }
  const bool one_host = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
  return one_host ? CudaRanks::meet(bootstrap, device, here) : CudaHosts::meet(bootstrap, device);
#else
  static_cast<void>(hosts);
  static_cast<void>(deterministic);
  static_cast<void>(any_nccl);
  return nullptr;  // not reached: without CUDA no such device can be opened
#endif
}

}  // namespace slip::comm
