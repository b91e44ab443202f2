#include "model/cpu/gemm.hpp"

#if SLIP_HAS_OPENBLAS
#include <cblas.h>
#endif

#include <atomic>
#include <cstdlib>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "slip/error.hpp"

namespace slip::model::cpu {

#if SLIP_HAS_OPENBLAS

namespace {

// Threads that are in a BLAS call. At exit the destructor of OpenBLAS unmaps the memory that calls use. A fork during a
// call would leave that memory locked in the child. So exit and fork wait for running calls, each of one tile, and
// block new ones.
std::atomic<int> g_inside{0};
std::atomic<int> g_forks{0};
std::atomic<bool> g_gone{false};  // the process exits: the BLAS must not be used any more

// seq_cst here and where the other flags are set. A call first counts itself in g_inside and then reads the flags. A
// fork or an exit first sets its flag and then reads g_inside. So at least one of the two observes the other.
bool enter() {
  for (base::Backoff backoff;; backoff.pause()) {
    g_inside.fetch_add(1, std::memory_order_seq_cst);
    if (g_forks.load(std::memory_order_seq_cst) == 0 && !g_gone.load(std::memory_order_seq_cst)) return true;
    g_inside.fetch_sub(1, std::memory_order_relaxed);  // relaxed: this thread made no BLAS call
    if (g_gone.load(std::memory_order_relaxed)) return false;
  }
}

void leave() { g_inside.fetch_sub(1, std::memory_order_release); }  // release: orders the BLAS call before it

void await_calls() {
  for (base::Backoff backoff; g_inside.load(std::memory_order_seq_cst) != 0; backoff.pause()) {}
}

void before_fork() {
  g_forks.fetch_add(1, std::memory_order_seq_cst);
  await_calls();
}

void in_parent() { g_forks.fetch_sub(1, std::memory_order_release); }

void in_child() {  // other threads do not exist in the child
  g_inside.store(0, std::memory_order_relaxed);
  g_forks.store(0, std::memory_order_relaxed);
}

void at_first_use() {
  [[maybe_unused]] static const bool kDone = [] {
    // for_each_index distributes the work over the cores: with BLAS threads each core would start threads for all
    // cores.
    if (openblas_get_parallel() != 0) openblas_set_num_threads(1);
    base::at_fork(before_fork, in_parent, in_child);
    std::atexit([] {
      g_gone.store(true, std::memory_order_seq_cst);
      await_calls();
    });
    return true;
  }();
}

// Plain loops, for work that still runs while the process exits.
void multiply_plainly(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum) {
  for (std::size_t token = 0; token < sizes.tokens; ++token) {
    for (std::size_t row = 0; row < sizes.rows; ++row) {
      float& into = y.data[token * y.stride + row];
      float result = sum == Sum::kAdd ? into : 0;
      for (std::size_t i = 0; i < sizes.in; ++i) result += x.data[token * x.stride + i] * w.data[row * w.stride + i];
      into = result;
    }
  }
}

}  // namespace

void gemm(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum) {
  at_first_use();
  if (!enter()) return multiply_plainly(sizes, x, w, y, sum);
  const auto number = [](std::size_t value) { return static_cast<blasint>(value); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, number(sizes.tokens), number(sizes.rows), number(sizes.in), 1.0F,
              x.data, number(x.stride), w.data, number(w.stride), sum == Sum::kAdd ? 1.0F : 0.0F, y.data,
              number(y.stride));
  leave();
}

#else

void gemm(const GemmSizes&, Rows<const float>, Rows<const float>, Rows<float>, Sum) {
  throw Error(Code::kUnsupported, "this build has no BLAS", {});
}

#endif

}  // namespace slip::model::cpu
