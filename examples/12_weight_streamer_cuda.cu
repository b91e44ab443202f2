// Streams weights for hand-written CUDA kernels in the program's own cudaStream_t. A third of the weights fits the
// memory that the program allows. Compare with 11_weight_streamer.cpp, which runs on any device.
//
//   12_weight_streamer_cuda        exit status 77: there is no GPU
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr int kSize = 2048, kLayers = 12, kSteps = 20, kThreads = 256;
constexpr std::uint64_t kBytes = std::uint64_t{kSize} * kSize * sizeof(float);

// y = tanh(W x), one block for each row.
__global__ void layer_kernel(float* y, const float* w, const float* x) {
  __shared__ float sums[kThreads];
  float sum = 0;
  for (int column = static_cast<int>(threadIdx.x); column < kSize; column += kThreads)
    sum += w[blockIdx.x * kSize + column] * x[column];
  sums[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = tanhf(sums[0]);
}

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

std::vector<float> run(const slip::Device& device, const slip::Buffer& weights, std::uint64_t budget) {
  std::vector<slip::StreamedGroup> groups;
  std::vector<slip::GroupUse> uses;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    groups.push_back(
        {name, slip::GroupSource::pinned(weights.slice(static_cast<std::uint64_t>(layer) * kBytes, kBytes))});
    uses.push_back({name});
  }
  slip::WeightStreamer streamer(device, groups, {.budget = budget});
  const slip::WeightPass pass = streamer.add_pass("forward", uses);
  streamer.plan();

  cudaStream_t stream = nullptr;
  float *x = nullptr, *y = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaMalloc(reinterpret_cast<void**>(&x), kSize * sizeof(float)));
  check(cudaMalloc(reinterpret_cast<void**>(&y), kSize * sizeof(float)));
  std::vector<float> values(kSize, 0.5F);
  check(cudaMemcpyAsync(x, values.data(), kSize * sizeof(float), cudaMemcpyHostToDevice, stream));
  {
    const slip::Stream compute = device.adopt(stream, "compute");
    for (int step = 0; step < kSteps; ++step) {
      streamer.begin(pass);
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
        const slip::Range range = streamer.acquire(layer, compute);  // the stream waits for the load, the host does not
        const auto* w = static_cast<const float*>(slip::WeightStreamer::address(range));
        layer_kernel<<<kSize, kThreads, 0, stream>>>(y, w, x);
        streamer.release(layer, compute);
        std::swap(x, y);
      }
    }
    check(cudaMemcpyAsync(values.data(), x, kSize * sizeof(float), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    std::printf("%s", streamer.describe(pass).c_str());
    std::printf("%s\n", streamer.report().text().c_str());
    streamer.sync();
  }
  check(cudaFree(x));
  check(cudaFree(y));
  check(cudaStreamDestroy(stream));
  return values;
}

}  // namespace

int main() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: there is no GPU here\n");
    return 77;
  }
  const slip::Device device = slip::Device::open("cuda:0");
  slip::Buffer weights = device.alloc(kLayers * kBytes, slip::MemoryKind::kPinned, "weights");
  std::uint32_t random = 1;
  for (float& value : weights.host_write<float>()) {
    random = random * 1664525 + 1013904223;
    value = (static_cast<float>(random >> 8) / 16777216.0F - 0.5F) / 8.0F;
  }
  const std::vector<float> expected = run(device, weights, kLayers * kBytes);
  const std::vector<float> output = run(device, weights, kLayers * kBytes / 3);
  std::printf("outputs: %s, the first is %g\n", output == expected ? "equal" : "WRONG", static_cast<double>(output[0]));
  return output == expected && output[0] != 0 ? 0 : 1;
}
