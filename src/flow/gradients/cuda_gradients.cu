#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.hpp"
#include "flow/gradients/cuda_gradients.hpp"

namespace slip::flow::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kElementsOfThread = 8;  // loaded before the first is used
// Beside a backward pass few blocks are enough: 64 of them have 1 MiB of loads in flight. The scaling runs alone.
constexpr std::size_t kFewBlocks = 64, kManyBlocks = 1024;
static_assert(kMaxPartialSums == kFewBlocks);

__device__ float to_float(__half value) { return __half2float(value); }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T>
__device__ T from_float(float value);
template <>
__device__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <class T>
__device__ double to_double(T value) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<double>(value);
  else return static_cast<double>(to_float(value));
}
template <class T>
__device__ T from_double(double value) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(value);
  else return from_float<T>(static_cast<float>(value));
}

// Calls `use(i, load(i))` for the elements of this thread, kElementsOfThread at a time: first all loads, then all uses.
template <class Load, class Use>
__device__ void for_each_element(std::size_t count, const Load& load, const Use& use) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kElementsOfThread - 1) * step < count; i += kElementsOfThread * step) {
    decltype(load(i)) values[kElementsOfThread];
#pragma unroll
    for (int k = 0; k < kElementsOfThread; ++k) values[k] = load(i + k * step);
#pragma unroll
    for (int k = 0; k < kElementsOfThread; ++k) use(i + k * step, values[k]);
  }
  for (; i < count; i += step) use(i, load(i));
}

template <class To, class From>
__device__ To converted(From value) {
  if constexpr (sizeof(From) == sizeof(float)) return from_float<To>(value);
  else return to_float(value);
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T one[4];
};

// `fours`: the elements are converted four at a time. Both addresses are then multiples of four elements.
template <class To, class From>
__global__ void __launch_bounds__(kThreads) convert(To* to, const From* from, std::size_t fours, std::size_t count) {
  for_each_element(
      fours, [&](std::size_t i) { return reinterpret_cast<const Four<From>*>(from)[i]; },
      [&](std::size_t i, const Four<From>& in) {
        Four<To> out;
#pragma unroll
        for (int k = 0; k < 4; ++k) out.one[k] = converted<To>(in.one[k]);
        reinterpret_cast<Four<To>*>(to)[i] = out;
      });
  const std::size_t rest = 4 * fours;
  for_each_element(
      count - rest, [&](std::size_t i) { return from[rest + i]; },
      [&](std::size_t i, From value) { to[rest + i] = converted<To>(value); });
}

// The sum over a block, in a fixed order. Valid in thread 0.
__device__ double sum_of_block(double value) {
  __shared__ double of_warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffU, value, offset);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (const double one : of_warps) sum += one;
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) square_parts(double* parts, const T* values, std::size_t count) {
  double own = 0;
  for_each_element(
      count, [&](std::size_t i) { return values[i]; },
      [&](std::size_t, T value) {
        const double number = to_double(value);
        own += number * number;
      });
  const double sum = sum_of_block(own);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Adds the values in their order, as the cpu does. The block loads them together, since one thread alone would wait for
// each load.
__global__ void __launch_bounds__(kThreads)
    add_up(double* sum, const double* values, std::size_t count, double share, bool adds) {
  __shared__ double loaded[kThreads];
  double total = 0;
  for (std::size_t first = 0; first < count; first += kThreads) {
    const std::size_t here = count - first < kThreads ? count - first : kThreads;
    __syncthreads();  // thread 0 has added the values before
    if (threadIdx.x < here) loaded[threadIdx.x] = values[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x != 0) continue;
    for (std::size_t i = 0; i < here; ++i) total += loaded[i];
  }
  if (threadIdx.x != 0) return;
  total *= share;
  *sum = adds ? *sum + total : total;
}

__global__ void find_factor(double* norm, double* result, const double* total, double max_norm) {
  const double root = sqrt(*total);
  *norm = root;
  *result = root > max_norm ? max_norm / root : 1;
}

template <class T>
__global__ void __launch_bounds__(kThreads) scale_by(T* values, const double* by, std::size_t count) {
  const double number = *by;
  if (number == 1) return;
  for_each_element(
      count, [&](std::size_t i) { return values[i]; },
      [&](std::size_t i, T value) { values[i] = from_double<T>(to_double(value) * number); });
}

unsigned blocks_for(std::size_t elements, std::size_t max) {
  constexpr std::size_t kOfBlock = std::size_t{kThreads} * kElementsOfThread;
  return static_cast<unsigned>(std::clamp<std::size_t>((elements + kOfBlock - 1) / kOfBlock, 1, max));
}

template <class To, class From>
void launch_convert(const Args& args, CUstream_st* stream) {
  const std::span<const From> from = args.in<From>(0);
  const std::span<To> to = args.out<To>(0);
  const std::size_t count = std::min(from.size(), to.size());
  if (count == 0) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(from.data()) % (4 * sizeof(From)) == 0 &&
                       reinterpret_cast<std::uintptr_t>(to.data()) % (4 * sizeof(To)) == 0;
  const std::size_t fours = aligned ? count / 4 : 0;
  convert<To, From><<<blocks_for(std::max(fours, count - 4 * fours), kFewBlocks), kThreads, 0, stream>>>(
      to.data(), from.data(), fours, count);
}

template <class T>
void launch_square(const Args& args, CUstream_st* stream) {
  const std::span<const T> values = args.in<T>(0);
  const std::span<double> parts = args.out<double>(1);
  const unsigned blocks = blocks_for(values.size(), kFewBlocks);
  square_parts<T><<<blocks, kThreads, 0, stream>>>(parts.data(), values.data(), values.size());
  add_up<<<1, kThreads, 0, stream>>>(args.out<double>(0).data(), parts.data(), blocks, 1, false);
}

template <class T>
void launch_scale(const Args& args, CUstream_st* stream) {
  const std::span<T> values = args.out<T>(0);
  scale_by<T><<<blocks_for(values.size(), kManyBlocks), kThreads, 0, stream>>>(values.data(), args.in<double>(0).data(),
                                                                               values.size());
}

}  // namespace

void load_kernels() {
  using Half = __half;
  using Bfloat = __nv_bfloat16;
  for (const void* const kernel :
       {reinterpret_cast<const void*>(convert<Half, float>), reinterpret_cast<const void*>(convert<float, Half>),
        reinterpret_cast<const void*>(convert<Bfloat, float>), reinterpret_cast<const void*>(convert<float, Bfloat>),
        reinterpret_cast<const void*>(square_parts<float>), reinterpret_cast<const void*>(square_parts<double>),
        reinterpret_cast<const void*>(square_parts<Half>), reinterpret_cast<const void*>(square_parts<Bfloat>),
        reinterpret_cast<const void*>(add_up), reinterpret_cast<const void*>(find_factor),
        reinterpret_cast<const void*>(scale_by<float>), reinterpret_cast<const void*>(scale_by<double>),
        reinterpret_cast<const void*>(scale_by<Half>), reinterpret_cast<const void*>(scale_by<Bfloat>)}) {
    cudaFuncAttributes attributes{};
    backend::check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes", -1, "the kernels of gradients");
  }
}

void pack_f16(const Args& args, CUstream_st* stream) { launch_convert<__half, float>(args, stream); }
void pack_bf16(const Args& args, CUstream_st* stream) { launch_convert<__nv_bfloat16, float>(args, stream); }
void unpack_f16(const Args& args, CUstream_st* stream) { launch_convert<float, __half>(args, stream); }
void unpack_bf16(const Args& args, CUstream_st* stream) { launch_convert<float, __nv_bfloat16>(args, stream); }

void square_f32(const Args& args, CUstream_st* stream) { launch_square<float>(args, stream); }
void square_f64(const Args& args, CUstream_st* stream) { launch_square<double>(args, stream); }
void square_f16(const Args& args, CUstream_st* stream) { launch_square<__half>(args, stream); }
void square_bf16(const Args& args, CUstream_st* stream) { launch_square<__nv_bfloat16>(args, stream); }

void total(const Args& args, CUstream_st* stream) {
  const std::span<const double> squares = args.in<double>(0);
  add_up<<<1, kThreads, 0, stream>>>(args.out<double>(0).data(), squares.data(), squares.size(), args.scalar<double>(0),
                                     args.scalar<int>(1) != 0);
}

void factor(const Args& args, CUstream_st* stream) {
  find_factor<<<1, 1, 0, stream>>>(args.out<double>(0).data(), args.out<double>(1).data(), args.in<double>(0).data(),
                                   args.scalar<double>(0));
}

void scale_f32(const Args& args, CUstream_st* stream) { launch_scale<float>(args, stream); }
void scale_f64(const Args& args, CUstream_st* stream) { launch_scale<double>(args, stream); }
void scale_f16(const Args& args, CUstream_st* stream) { launch_scale<__half>(args, stream); }
void scale_bf16(const Args& args, CUstream_st* stream) { launch_scale<__nv_bfloat16>(args, stream); }

}  // namespace slip::flow::cuda
