#include <cuda_runtime.h>

#include "cuda_work.hpp"

namespace slip::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kSums = 16;
// More than half of a multiprocessor's shared memory: one block fits on each, as with large tiles of a matrix product.
constexpr int kTileBytes = 120 << 10;
constexpr int kTile = kTileBytes / static_cast<int>(sizeof(float));

__global__ void __launch_bounds__(kThreads) multiply(float* out, std::size_t count, int rounds, float value) {
  extern __shared__ float tile[];
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kThreads) tile[i] = static_cast<float>(i % 7) * 0.125F;
  __syncthreads();
  float sums[kSums];
  for (int k = 0; k < kSums; ++k) sums[k] = static_cast<float>(k);
  int at = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    const float a = tile[at];
#pragma unroll
    for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * 0.5F + a;
    at = at + kThreads < kTile ? at + kThreads : static_cast<int>(threadIdx.x);
  }
  float total = 0;
  for (int k = 0; k < kSums; ++k) total += sums[k];
  const float result = total < 0 ? 0 : value;  // the sums are not negative; the compiler cannot know
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) out[i] = result;
}

}  // namespace

int multiprocessors() {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  return count;
}

void load_work() {
  check(cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes),
        "cudaFuncSetAttribute");
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, multiply), "cudaFuncGetAttributes");
}

void work(const Args& args, CUstream_st* stream) {
  const std::span<float> out = args.out<float>(0);
  multiply<<<static_cast<unsigned>(args.scalar<int>(0)), kThreads, kTileBytes, stream>>>(
      out.data(), out.size(), args.scalar<int>(1), args.scalar<float>(2));
}

}  // namespace slip::bench
