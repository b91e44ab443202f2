#include <cuda_runtime.h>

#include "raw_link.hpp"
#include "support/timing.hpp"

namespace slip::bench {

double raw_upload_rate(const void* pinned, std::size_t pinned_bytes, std::size_t piece_bytes, std::size_t total_bytes) {
  void* target = nullptr;
  cudaStream_t stream = nullptr;
  check(cudaMalloc(&target, piece_bytes), "cudaMalloc");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const auto copy = [&](std::size_t bytes) {
    std::size_t at = 0;
    for (std::size_t done = 0; done < bytes; done += piece_bytes) {
      if (at + piece_bytes > pinned_bytes) at = 0;
      check(cudaMemcpyAsync(target, static_cast<const char*>(pinned) + at, piece_bytes, cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
      at += piece_bytes;
    }
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  };
  copy(8 * piece_bytes);
  const std::size_t pieces = (total_bytes + piece_bytes - 1) / piece_bytes;
  const Timer timer;
  copy(pieces * piece_bytes);
  const double nanoseconds = timer.elapsed_ns();
  cudaStreamDestroy(stream);
  cudaFree(target);
  return static_cast<double>(pieces * piece_bytes) / nanoseconds * 1e9;
}

}  // namespace slip::bench
