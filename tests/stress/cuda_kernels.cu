#include <stdexcept>
#include <string>

#include "slip/error.hpp"
#include "stress/cuda_kernels.hpp"

namespace slip::stress::cuda {
namespace {

constexpr unsigned int kThreads = 64;
constexpr std::size_t kMaxInputs = 4;

struct Input {
  const std::uint32_t* data;
  std::size_t count;
};

struct Inputs {
  Input list[kMaxInputs];
  std::size_t count;
};

// The same as mixed() of the reference.
__device__ std::uint32_t mixed_on_gpu(std::uint32_t state, std::uint32_t value) {
  state = (state ^ value) * 0x9e3779b1u;
  return state ^ (state >> 15);
}

// One block. With one thread the words are made in the order in which the reference makes them.
__global__ void mix_words(std::uint32_t* out, std::size_t count, Inputs in, std::uint32_t value) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    std::uint32_t word = mixed_on_gpu(out[i], value);
    for (std::size_t k = 0; k < in.count; ++k) word = mixed_on_gpu(word, in.list[k].data[i % in.list[k].count]);
    out[i] = word;
  }
}

// A word that is read as an input of another one may have been written before: then the order of the words matters.
bool order_matters(std::span<const std::uint32_t> out, const Inputs& in) {
  for (std::size_t k = 0; k < in.count; ++k) {
    const Input& from = in.list[k];
    const bool apart = from.data + from.count <= out.data() || out.data() + out.size() <= from.data;
    const bool same = from.data == out.data() && from.count >= out.size();  // each word reads itself only
    if (!apart && !same) return true;
  }
  return false;
}

}  // namespace

void mix(const Args& args, CUstream_st* stream) {
  Inputs in{};
  if (args.reads() > kMaxInputs) throw std::runtime_error("more inputs than the kernel of a GPU takes");
  for (; in.count < args.reads(); ++in.count) {
    const auto from = args.in<std::uint32_t>(in.count);
    in.list[in.count] = {from.data(), from.size()};
  }
  for (std::size_t i = 0; i < args.writes(); ++i) {
    const auto out = args.out<std::uint32_t>(i);
    const unsigned int threads = order_matters(out, in) ? 1 : kThreads;
    mix_words<<<1, threads, 0, stream>>>(out.data(), out.size(), in, args.scalar<std::uint32_t>(0));
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
      throw Error(ErrorCode::kLaunchFailed, std::string("mix: ") + cudaGetErrorString(error));
  }
}

}  // namespace slip::stress::cuda
