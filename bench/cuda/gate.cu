#include <atomic>
#include <new>

#include "gate.hpp"
#include "gpu.hpp"

namespace slip::bench {

struct Gate::Words {
  unsigned opened;
  unsigned timed_out;
};

namespace {

// Without a timeout, a gate that is never opened would leave the GPU spinning: a kernel outlives the process that
// launched it.
constexpr unsigned long long kTimeoutNs = 2'000'000'000;

__device__ unsigned long long timer_ns() {
  unsigned long long ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void hold(const volatile unsigned* opened, volatile unsigned* timed_out) {
  const unsigned long long start = timer_ns();
  while (*opened == 0) {
    if (timer_ns() - start < kTimeoutNs) continue;
    *timed_out = 1;
    return;
  }
}

}  // namespace

Gate::Gate() {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, sizeof(Words)), "cudaMallocHost");
  words_ = new (memory) Words{1, 0};
  // The first launch of a kernel loads it, which may wait for the device. So it must not happen behind a closed gate.
  hold<<<1, 1>>>(&words_->opened, &words_->timed_out);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Gate::~Gate() {
  open();
  cudaDeviceSynchronize();
  cudaFreeHost(words_);
}

void Gate::close(cudaStream_t stream) {
  std::atomic_ref(words_->opened).store(0);
  hold<<<1, 1, 0, stream>>>(&words_->opened, &words_->timed_out);
  check(cudaGetLastError(), "launch of the gate");
}

void Gate::open() { std::atomic_ref(words_->opened).store(1); }

void Gate::expect_held() const {
  expect(std::atomic_ref(words_->timed_out).load() == 0, "the gate timed out: submission took over two seconds");
}

}  // namespace slip::bench
