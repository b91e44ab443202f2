#include "model/cpu/gemm.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip::model::cpu {

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

// OpenBLAS, loaded with dlopen when it is first used. If it were linked, every process would start its threads, one per
// core, which spin for some 30 ms before they sleep. It is never closed.
struct OpenBlas {
  // cblas_sgemm of a build with 32-bit integers. The first three arguments are enumerations of C.
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                         int a_stride, const float* b, int b_stride, float beta, float* c, int c_stride);
  static constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;

  Sgemm sgemm = nullptr;  // nullptr: there is no OpenBLAS that several threads may call
};

OpenBlas open_blas() {
#if SLIP_USES_OPENBLAS
  // Fedora's build with threads, then the usual name.
  for (const char* const name : {"libopenblasp.so.0", "libopenblas.so.0"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    const auto parallel = reinterpret_cast<int (*)()>(::dlsym(library, "openblas_get_parallel"));
    const auto set_threads = reinterpret_cast<void (*)(int)>(::dlsym(library, "openblas_set_num_threads"));
    const auto sgemm = reinterpret_cast<OpenBlas::Sgemm>(::dlsym(library, "cblas_sgemm"));
    if (!parallel || parallel() == 0 || !set_threads || !sgemm) {
      ::dlclose(library);
      continue;
    }
    // for_each_index distributes the work over the cores: with BLAS threads each core would start threads for all
    // cores.
    set_threads(1);
    base::at_fork(before_fork, in_parent, in_child);
    std::atexit([] {
      g_gone.store(true, std::memory_order_seq_cst);
      await_calls();
    });
    return {sgemm};
  }
#endif
  return {};
}

const OpenBlas& open_blas_once() {
  static const OpenBlas kBlas = open_blas();
  return kBlas;
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

bool has_blas() { return open_blas_once().sgemm != nullptr; }

void gemm(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum) {
  const OpenBlas& blas = open_blas_once();
  if (!enter()) return multiply_plainly(sizes, x, w, y, sum);
  const auto number = [](std::size_t value) { return static_cast<int>(value); };
  blas.sgemm(OpenBlas::kRowMajor, OpenBlas::kNoTranspose, OpenBlas::kTranspose, number(sizes.tokens),
             number(sizes.rows), number(sizes.in), 1.0F, x.data, number(x.stride), w.data, number(w.stride),
             sum == Sum::kAdd ? 1.0F : 0.0F, y.data, number(y.stride));
  leave();
}

}  // namespace slip::model::cpu
