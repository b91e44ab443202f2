#include "model/cpu/gemm.hpp"

#if SLIP_HAS_OPENBLAS
#include <cblas.h>
#endif

#include "slip/error.hpp"

namespace slip::cpu {

#if SLIP_HAS_OPENBLAS

namespace {

// The cores are shared out by for_each_index: a BLAS with threads of its own would have each of them start as many.
void keep_to_one_thread() {
  static const bool kDone = [] {
    if (openblas_get_parallel() != 0) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(kDone);
}

}  // namespace

void gemm(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum) {
  keep_to_one_thread();
  const auto number = [](std::size_t value) { return static_cast<blasint>(value); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, number(sizes.tokens), number(sizes.rows), number(sizes.in), 1.0F,
              x.data, number(x.stride), w.data, number(w.stride), sum == Sum::kAdd ? 1.0F : 0.0F, y.data,
              number(y.stride));
}

#else

void gemm(const GemmSizes&, Rows<const float>, Rows<const float>, Rows<float>, Sum) {
  throw Error(Code::kUnsupported, "this build has no BLAS", {});
}

#endif

}  // namespace slip::cpu
