#include <algorithm>
#include <cmath>
#include <string>

#include "cli/lab/cuda_kernels.hpp"
#include "slip/error.hpp"

namespace slip::cli::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 4;  // 2048 threads: the maximum of an SM of a data-centre GPU
constexpr int kFlopsThreads = 256;
constexpr int kSums = 16;  // independent sums of a thread: enough to hide the latency of a multiply-add

__device__ std::uint64_t gpu_now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Waits until the block's time is over. One thread reads the clock; the others wait for it and stay resident.
class BlockPace {
 public:
  __device__ explicit BlockPace(std::int64_t nanoseconds)
      : end_(nanoseconds > 0 ? gpu_now_ns() + static_cast<std::uint64_t>(nanoseconds) : 0) {}
  __device__ void finish() const {
    if (end_ == 0) return;
    if (threadIdx.x == 0) {
      while (gpu_now_ns() < end_) __nanosleep(500);
    }
    __syncthreads();
  }

 private:
  std::uint64_t end_;
};

__device__ std::size_t first_index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::size_t index_step() { return std::size_t{gridDim.x} * blockDim.x; }

// out[i] = factor * x[i] + (y ? y[i] : addend). In place is allowed: each thread reads only the elements that it
// writes.
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    affine(float* out, const float* x, const float* y, std::size_t count, float factor, float addend, std::int64_t ns) {
  const BlockPace pace(ns);
  for (std::size_t i = first_index(); i < count; i += index_step()) out[i] = factor * x[i] + (y ? y[i] : addend);
  pace.finish();
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm) spin(std::int64_t ns) { BlockPace(ns).finish(); }

__global__ void __launch_bounds__(kThreads, kBlocksPerSm) add_element(float* out, const float* in, std::int64_t ns) {
  const BlockPace pace(ns);
  if (first_index() == 0) out[0] += in[0];
  pace.finish();
}

__global__ void __launch_bounds__(kFlopsThreads) add_up(std::uint64_t rounds, float* never) {
  float sums[kSums];
  for (int k = 0; k < kSums; ++k) sums[k] = static_cast<float>(threadIdx.x);
  for (std::uint64_t i = 0; i < rounds; ++i) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * 0.999F + 1.0F;
  }
  float total = 0;
  for (int k = 0; k < kSums; ++k) total += sums[k];
  if (total < 0) *never = total;  // never true; uses the result, so that the compiler keeps the loop
}

__global__ void do_nothing() {}

// An attribute of the current GPU; 1 if the query fails, so that a launch still has a block.
int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, which, device) != cudaSuccess ||
      value < 1)
    return 1;
  return value;
}

// Maximum number of resident blocks of kThreads on the GPU.
int all_blocks() {
  const int per_sm = std::max(1, attribute(cudaDevAttrMaxThreadsPerMultiProcessor) / kThreads);
  return attribute(cudaDevAttrMultiProcessorCount) * std::min(per_sm, kBlocksPerSm);
}

int flops_blocks() { return attribute(cudaDevAttrMultiProcessorCount) * 8; }

// A kernel with a duration starts its share of all_blocks(). A kernel without a duration starts one thread for each
// element, up to all_blocks().
unsigned int blocks_for(std::int64_t pace, std::size_t count) {
  const int all = all_blocks();
  if (pace_nanoseconds(pace) > 0)
    return static_cast<unsigned int>(std::max(1L, std::lround(pace_width(pace) * static_cast<double>(all))));
  return static_cast<unsigned int>(
      std::clamp<std::size_t>((count + kThreads - 1) / kThreads, 1, static_cast<std::size_t>(all)));
}

void check_launch(const char* kernel) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw Error(ErrorCode::kLaunchFailed, std::string(kernel) + ": " + cudaGetErrorString(error));
}

struct AffineOperands {
  const float* x;
  const float* y;
  float factor, addend;
};

void launch_affine(const Args& args, const AffineOperands& operands, CUstream_st* stream, const char* name) {
  const auto out = args.out<float>(0);
  const auto pace = args.scalar<std::int64_t>(0);
  affine<<<blocks_for(pace, out.size()), kThreads, 0, stream>>>(
      out.data(), operands.x, operands.y, out.size(), operands.factor, operands.addend, pace_nanoseconds(pace));
  check_launch(name);
}

}  // namespace

void load_kernels() {
  cudaFuncAttributes attributes{};
  for (const void* kernel : {reinterpret_cast<const void*>(affine), reinterpret_cast<const void*>(spin),
                             reinterpret_cast<const void*>(add_element), reinterpret_cast<const void*>(add_up),
                             reinterpret_cast<const void*>(do_nothing)}) {
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw Error(ErrorCode::kInvalidDevice,
                  std::string("cannot load the kernels of the labs: ") + cudaGetErrorString(error));
    }
  }
}

double flops_threads() { return static_cast<double>(flops_blocks()) * kFlopsThreads; }

void vector_add(const Args& args, CUstream_st* stream) {
  launch_affine(args, {args.in<float>(0).data(), args.in<float>(1).data(), 1.0F, 0.0F}, stream, "vector_add");
}

void saxpy(const Args& args, CUstream_st* stream) {
  launch_affine(args, {args.in<float>(0).data(), args.in<float>(1).data(), args.scalar<float>(1), 0.0F}, stream,
                "saxpy");
}

void scale(const Args& args, CUstream_st* stream) {
  launch_affine(args, {args.in<float>(0).data(), nullptr, args.scalar<float>(1), args.scalar<float>(2)}, stream,
                "scale");
}

void busy(const Args& args, CUstream_st* stream) {
  const auto pace = args.scalar<std::int64_t>(0);
  spin<<<blocks_for(pace, 1), kThreads, 0, stream>>>(pace_nanoseconds(pace));
  check_launch("busy");
}

void add_first(const Args& args, CUstream_st* stream) {
  const auto pace = args.scalar<std::int64_t>(0);
  add_element<<<blocks_for(pace, 1), kThreads, 0, stream>>>(args.out<float>(0).data(), args.in<float>(0).data(),
                                                            pace_nanoseconds(pace));
  check_launch("layer");
}

void flops(const Args& args, CUstream_st* stream) {
  add_up<<<static_cast<unsigned int>(flops_blocks()), kFlopsThreads, 0, stream>>>(args.scalar<std::uint64_t>(0),
                                                                                  nullptr);
  check_launch("flops");
}

void nothing(const Args&, CUstream_st* stream) {
  do_nothing<<<1, 1, 0, stream>>>();
  check_launch("nothing");
}

}  // namespace slip::cli::cuda
