// cuBLASLt, loaded with dlopen when it is first used. If it were linked, every process would need 200 MiB more memory
// and the time to load them, even without a GPU.
#pragma once

#include <cublasLt.h>

namespace slip::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm;
  decltype(&cublasLtMatmulDescCreate) create_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
};

// Throws kUnsupported with the names tried if it is not installed.
const CublasLt& cublas_lt();

}  // namespace slip::cuda
