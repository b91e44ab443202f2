// The ops that work row by row, on a GPU. A thread loads and stores 16 bytes (a pack) at a time if addresses and sizes
// allow. Sums are accumulated in float, in an order that depends only on the size and on whether packs are used. So
// tensors at multiples of 16 bytes always give the same bits.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cuda/check.hpp"
#include "model/kernels.hpp"

namespace slip::model::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr std::size_t kMaxBlocks = 4096;  // grid-stride loops: more blocks than fill a GPU only add start-up time

__device__ float to_float(float value) { return value; }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void put(float& into, float value) { into = value; }
__device__ void put(__nv_bfloat16& into, float value) { into = __float2bfloat16_rn(value); }

template <class T>
struct alignas(16) Pack {
  static constexpr std::size_t kCount = 16 / sizeof(T);
  T at[kCount];
};

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Multiply {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0.0F : x; }  // a NaN stays a NaN
};
struct Gelu {  // for negative x erfc, as on the cpu: 1 + erf would cancel all digits
  __device__ float operator()(float x) const {
    if (x == -INFINITY) return 0;
    const float scaled = x * 0.70710678118654752440F;
    return 0.5F * x * (x < 0 ? erfcf(-scaled) : 1 + erff(scaled));
  }
};
struct Silu {
  __device__ float operator()(float x) const {
    if (x == -INFINITY) return 0;
    const float e = expf(x < 0 ? x : -x);
    return x < 0 ? x * e / (1 + e) : x / (1 + e);
  }
};

__device__ std::size_t thread_number() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::size_t thread_count() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

// y[i] = function(x[i]). The first `packs` packs are loaded as packs, the elements after them one by one.
template <class T, class Function>
__global__ void map_one(const T* x, T* y, std::size_t packs, std::size_t elements, Function function) {
  for (std::size_t i = thread_number(); i < packs; i += thread_count()) {
    const Pack<T> from = reinterpret_cast<const Pack<T>*>(x)[i];
    Pack<T> into;
#pragma unroll
    for (std::size_t k = 0; k < Pack<T>::kCount; ++k) put(into.at[k], function(to_float(from.at[k])));
    reinterpret_cast<Pack<T>*>(y)[i] = into;
  }
  for (std::size_t i = packs * Pack<T>::kCount + thread_number(); i < elements; i += thread_count())
    put(y[i], function(to_float(x[i])));
}

// y[i] = function(a[i], b[i % period]). REQUIRES, if `packs` is not 0: the period is a whole number of packs, or it is
// `elements`.
template <class T, class Function>
__global__ void map_two(const T* a, const T* b, T* y, std::size_t packs, std::size_t elements, std::size_t period,
                        Function function) {
  for (std::size_t i = thread_number(); i < packs; i += thread_count()) {
    const Pack<T> left = reinterpret_cast<const Pack<T>*>(a)[i];
    const std::size_t other = period == elements ? i : i % (period / Pack<T>::kCount);
    const Pack<T> right = reinterpret_cast<const Pack<T>*>(b)[other];
    Pack<T> into;
#pragma unroll
    for (std::size_t k = 0; k < Pack<T>::kCount; ++k)
      put(into.at[k], function(to_float(left.at[k]), to_float(right.at[k])));
    reinterpret_cast<Pack<T>*>(y)[i] = into;
  }
  for (std::size_t i = packs * Pack<T>::kCount + thread_number(); i < elements; i += thread_count())
    put(y[i], function(to_float(a[i]), to_float(b[i % period])));
}

// The sum over the threads of a block; all of them get the same bits.
__device__ float sum_of_block(float value) {
  __shared__ float of_warp[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  __syncthreads();  // until all threads have read the of_warp of the previous sum
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (const float part : of_warp) sum += part;
  return sum;
}

// The sum over a row of (value - shift)^2, or of value - shift if kSquares is false.
template <bool kSquares, class T>
__device__ float sum_of_row(const T* x, std::size_t packs, std::size_t columns, float shift) {
  const auto term = [shift](T value) {
    const float off = to_float(value) - shift;
    return kSquares ? off * off : off;
  };
  float sum = 0;
  for (std::size_t i = threadIdx.x; i < packs; i += kThreads) {
    const Pack<T> from = reinterpret_cast<const Pack<T>*>(x)[i];
#pragma unroll
    for (std::size_t k = 0; k < Pack<T>::kCount; ++k) sum += term(from.at[k]);
  }
  for (std::size_t i = packs * Pack<T>::kCount + threadIdx.x; i < columns; i += kThreads) sum += term(x[i]);
  return sum_of_block(sum);
}

// Normalizes a value of a row. mean: of the row, 0 for rms_norm. scale: 1 / sqrt(mean of (value - mean)^2 + epsilon).
struct Normed {
  float mean, scale;
  __device__ float operator()(float x, float weight, float bias) const { return (x - mean) * scale * weight + bias; }
};

// A block of threads takes one row at a time. `bias` is null for rms_norm, which does not subtract the mean.
template <class T>
__global__ void norm(const T* x, const T* weight, const T* bias, T* y, std::size_t rows, std::size_t packs,
                     std::size_t columns, float epsilon) {
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * columns;
    T* into = y + row * columns;
    const float mean = bias ? sum_of_row<false>(from, packs, columns, 0) / static_cast<float>(columns) : 0;
    const float squares = sum_of_row<true>(from, packs, columns, mean);
    const Normed normed{mean, 1 / sqrtf(squares / static_cast<float>(columns) + epsilon)};
    for (std::size_t i = threadIdx.x; i < packs; i += kThreads) {
      const Pack<T> values = reinterpret_cast<const Pack<T>*>(from)[i];
      const Pack<T> weights = reinterpret_cast<const Pack<T>*>(weight)[i];
      const Pack<T> shifts = bias ? reinterpret_cast<const Pack<T>*>(bias)[i] : Pack<T>{};
      Pack<T> results;
#pragma unroll
      for (std::size_t k = 0; k < Pack<T>::kCount; ++k)
        put(results.at[k], normed(to_float(values.at[k]), to_float(weights.at[k]), bias ? to_float(shifts.at[k]) : 0));
      reinterpret_cast<Pack<T>*>(into)[i] = results;
    }
    for (std::size_t i = packs * Pack<T>::kCount + threadIdx.x; i < columns; i += kThreads)
      put(into[i], normed(to_float(from[i]), to_float(weight[i]), bias ? to_float(bias[i]) : 0));
  }
}

unsigned blocks_for(std::size_t items) {
  return static_cast<unsigned>(std::clamp<std::size_t>((items + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

// The number of whole packs in `elements` elements, or 0 if packs cannot be used. The elements are divided into runs of
// `run` elements, and each run must begin at an aligned address. So the pointers must be aligned, and if there are
// several runs, a run must have whole packs.
template <class T, class... Pointers>
std::size_t packs_in(std::size_t elements, std::size_t run, Pointers... pointers) {
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(pointers) % sizeof(Pack<T>) == 0) && ...);
  return aligned && (run == elements || run % Pack<T>::kCount == 0) ? elements / Pack<T>::kCount : 0;
}

template <class Function>
void with_type(DataType type, Function&& function) {
  if (type == DataType::kBF16) function(__nv_bfloat16{});
  else function(float{});
}

template <class Function>
void launch_map_one(const Args& args, CUstream_st* stream, Function function) {
  const RowSizes sizes = RowSizes::of(args);
  const std::size_t elements = sizes.rows * sizes.columns;
  with_type(sizes.type, [&]<class T>(T) {
    const T* x = args.in<T>(0).data();
    T* y = args.out<T>(0).data();
    const std::size_t packs = packs_in<T>(elements, elements, x, y);
    map_one<<<blocks_for(packs ? packs : elements), kThreads, 0, stream>>>(x, y, packs, elements, function);
  });
}

// each_row: in(1) is one row, which is combined with each row of in(0).
template <class Function>
void launch_map_two(const Args& args, CUstream_st* stream, Function function, bool each_row) {
  const RowSizes sizes = RowSizes::of(args);
  const std::size_t elements = sizes.rows * sizes.columns, period = each_row ? sizes.columns : elements;
  with_type(sizes.type, [&]<class T>(T) {
    const T *a = args.in<T>(0).data(), *b = args.in<T>(1).data();
    T* y = args.out<T>(0).data();
    const std::size_t packs = packs_in<T>(elements, period, a, b, y);
    map_two<<<blocks_for(packs ? packs : elements), kThreads, 0, stream>>>(a, b, y, packs, elements, period, function);
  });
}

void launch_norm(const Args& args, CUstream_st* stream, bool with_bias) {
  const RowSizes sizes = RowSizes::of(args);
  with_type(sizes.type, [&]<class T>(T) {
    const T *x = args.in<T>(0).data(), *w = args.in<T>(1).data(), *b = with_bias ? args.in<T>(2).data() : nullptr;
    T* const y = args.out<T>(0).data();
    // Row r begins at element r * columns. If a row has whole packs, every row is aligned like the first one.
    const std::size_t packs = sizes.columns % Pack<T>::kCount == 0 || sizes.rows == 1
                                  ? packs_in<T>(sizes.columns, sizes.columns, x, w, b, y)
                                  : 0;
    const auto blocks = static_cast<unsigned>(std::min<std::size_t>(sizes.rows, 65535));
    norm<<<blocks, kThreads, 0, stream>>>(x, w, b, y, sizes.rows, packs, sizes.columns,
                                          static_cast<float>(sizes.epsilon));
  });
}

}  // namespace

// The backend checks the status of the launch.
void bias(const Args& args, CUstream_st* stream) { launch_map_two(args, stream, Add{}, true); }
void add(const Args& args, CUstream_st* stream) { launch_map_two(args, stream, Add{}, false); }
void multiply(const Args& args, CUstream_st* stream) { launch_map_two(args, stream, Multiply{}, false); }
void relu(const Args& args, CUstream_st* stream) { launch_map_one(args, stream, Relu{}); }
void gelu(const Args& args, CUstream_st* stream) { launch_map_one(args, stream, Gelu{}); }
void silu(const Args& args, CUstream_st* stream) { launch_map_one(args, stream, Silu{}); }
void rms_norm(const Args& args, CUstream_st* stream) { launch_norm(args, stream, false); }
void layer_norm(const Args& args, CUstream_st* stream) { launch_norm(args, stream, true); }

}  // namespace slip::model::cuda
