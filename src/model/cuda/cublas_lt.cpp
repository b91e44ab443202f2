#include "model/cuda/cublas_lt.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "slip/error.hpp"

namespace slip::cuda {
namespace {

void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  for (const char* folder : {"", "/usr/local/cuda/lib64/"}) {
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  const char* const why = dlerror();
  throw Error(Code::kUnsupported,
              fmt::format("linear on a GPU needs cuBLASLt, and {} is neither on the loader's path nor in "
                          "/usr/local/cuda/lib64 ({}); add its folder to LD_LIBRARY_PATH",
                          name, why ? why : "no reason given"),
              {});
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw Error(Code::kUnsupported, fmt::format("cuBLASLt has no function {}", name), {});
}

CublasLt open() {
  void* const library = open_library();  // never closed: handles live as long as the process
  CublasLt found{};
  find(library, "cublasLtCreate", found.create);
  find(library, "cublasLtGetStatusString", found.status_string);
  find(library, "cublasLtMatmul", found.matmul);
  find(library, "cublasLtMatmulAlgoGetHeuristic", found.find_algorithm);
  find(library, "cublasLtMatmulDescCreate", found.create_product);
  find(library, "cublasLtMatmulDescSetAttribute", found.set_product);
  find(library, "cublasLtMatmulDescDestroy", found.destroy_product);
  find(library, "cublasLtMatmulPreferenceCreate", found.create_preference);
  find(library, "cublasLtMatmulPreferenceSetAttribute", found.set_preference);
  find(library, "cublasLtMatmulPreferenceDestroy", found.destroy_preference);
  find(library, "cublasLtMatrixLayoutCreate", found.create_layout);
  find(library, "cublasLtMatrixLayoutDestroy", found.destroy_layout);
  return found;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt kLibrary = open();
  return kLibrary;
}

}  // namespace slip::cuda
