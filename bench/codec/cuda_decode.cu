#include <cuda_runtime.h>

#include <stdexcept>

#include "bars.hpp"
#include "model/codec/kernel.hpp"
#include "support/cuda_check.hpp"

namespace slip::bench {
namespace {

class Memory {
 public:
  explicit Memory(std::size_t bytes, const void* from = nullptr) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes), "cudaMalloc");
    if (from) check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    else check(cudaMemset(data_, 0, bytes), "cudaMemset");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ArgBytes piece() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Seconds of one call of `issue`, from events around several.
template <class Issue>
double seconds_of(const Issue& issue) {
  constexpr int kRuns = 20;
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < 3; ++i) issue();
  check(cudaEventRecord(begin, nullptr), "cudaEventRecord");
  for (int i = 0; i < kRuns; ++i) issue();
  check(cudaEventRecord(end, nullptr), "cudaEventRecord");
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds * 1e-3 / kRuns;
}

}  // namespace

double gpu_copy_rate(std::size_t bytes) {
  if (!has_gpu()) return 0;
  const Memory from(bytes), into(bytes);
  return static_cast<double>(bytes) / seconds_of([&] {
           check(cudaMemcpyAsync(into.piece().data, from.piece().data, bytes, cudaMemcpyDeviceToDevice, nullptr),
                 "cudaMemcpyAsync");
         });
}

double gpu_decode_rate(const CodecWeights& of, bool verify) {
  if (!has_gpu()) return 0;
  const Memory blocks(of.blocks.size(), of.blocks.data());
  const Memory checksums(of.table.blocks() * 8, of.table.checksums().data());
  const Memory ends(of.table.blocks() * 4, of.table.ends().data());
  const Memory into(of.weights.size()), report(8);
  const ArgBytes reads[] = {blocks.piece(), checksums.piece(), ends.piece()}, writes[] = {into.piece(), report.piece()};
  model::DecompressSizes sizes = model::DecompressSizes::of(of.table);
  sizes.verify = verify;
  const std::vector<Scalar> scalars = sizes.scalars();
  const Args args(reads, writes, scalars);
  const double seconds = seconds_of([&] { model::cuda::decompress(args, nullptr); });
  std::vector<std::byte> found(of.weights.size());
  std::uint64_t fault = 0;
  check(cudaMemcpy(found.data(), into.piece().data, found.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(&fault, report.piece().data, sizeof fault, cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (fault != 0 || found != of.weights) throw std::runtime_error("the weights that the GPU decoded differ");
  return static_cast<double>(of.weights.size()) / seconds;
}

}  // namespace slip::bench
