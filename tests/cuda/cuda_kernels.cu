#include "cuda/cuda_kernels.hpp"

namespace slip::test {
namespace {

__global__ void affine_gpu(float* out, const float* in, std::size_t count, float factor, float offset) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) out[i] = in[i] * factor + offset;
}

void launch_affine(const Args& args, cudaStream_t stream) {
  const auto in = args.in<float>(0);
  const auto out = args.out<float>(0);
  affine_gpu<<<static_cast<unsigned>((out.size() + 255) / 256), 256, 0, stream>>>(
      out.data(), in.data(), out.size(), args.scalar<float>(0), args.scalar<float>(1));
}

__global__ void wild_gpu() { *reinterpret_cast<volatile int*>(8) = 1; }
void launch_wild(const Args&, cudaStream_t stream) { wild_gpu<<<1, 1, 0, stream>>>(); }

__global__ void spin_gpu(unsigned long long nanoseconds) {
  unsigned long long begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}
void launch_spin(const Args& args, cudaStream_t stream) {
  spin_gpu<<<1, 1, 0, stream>>>(args.scalar<unsigned long long>(0));
}

}  // namespace

const Kernel& affine() {
  static const Kernel kKernel{"affine", nullptr, launch_affine};
  return kKernel;
}
const Kernel& wild() {
  static const Kernel kKernel{"wild", nullptr, launch_wild};
  return kKernel;
}
const Kernel& spin() {
  static const Kernel kKernel{"spin", nullptr, launch_spin};
  return kKernel;
}

}  // namespace slip::test
