// A matrix product on the calling thread by OpenBLAS, if the machine has it.
#pragma once

#include <cstddef>

namespace slip::model::cpu {

// Loads OpenBLAS on the first call. False: it is not there, or it was built without threads. Such a build does
// not lock its memory: two threads that call it at the same time get wrong products. Also false with
// -DSLIP_OPENBLAS=OFF.
bool has_blas();

struct GemmSizes {
  std::size_t tokens = 0, rows = 0, in = 0;
};

// Rows of a matrix, `stride` elements apart.
template <class T>
struct Rows {
  T* data = nullptr;
  std::size_t stride = 0;
};

enum class Sum { kSet, kAdd };  // y = x * w^T, or y += x * w^T

// x [tokens, in], w [rows, in], y [tokens, rows]. REQUIRES: has_blas().
void gemm(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum);

}  // namespace slip::model::cpu
