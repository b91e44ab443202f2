// linear on a GPU, by cuBLASLt. For each GPU, type, size and alignment, the first launch chooses an algorithm, and
// later launches use it again. So the same launch always gives the same bits. The algorithm needs no workspace: streams
// can run it concurrently, and the planner need not count memory for it.
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <tuple>

#include "backend/cuda/check.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "model/kernels.hpp"

namespace slip::model::cuda {
namespace {

// cuBLASLt is loaded with dlopen when it is first used. If it were linked, every process would need 200 MiB more memory
// and the time to load them, even without a GPU. The library is never closed: handles live as long as the process.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  for (const char* folder : {"", "/usr/local/cuda/lib64/"}) {
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  const char* const why = dlerror();
  base::fail(ErrorCode::kUnsupported, {},
             "linear on a GPU needs cuBLASLt, and {} is neither on the loader's path nor in "
             "/usr/local/cuda/lib64 ({}); add its folder to LD_LIBRARY_PATH",
             name, why ? why : "no reason given");
}

template <class Function>
Function* find(void* library, const char* name) {
  if (void* const function = dlsym(library, name)) return reinterpret_cast<Function*>(function);
  base::fail(ErrorCode::kUnsupported, {}, "cuBLASLt has no function {}", name);
}

#define SLIP_FIND(function) find<decltype(function)>(library, #function)

struct CublasLt {
  void* library = open_library();
  decltype(&cublasLtCreate) create = SLIP_FIND(cublasLtCreate);
  decltype(&cublasLtGetStatusString) status_string = SLIP_FIND(cublasLtGetStatusString);
  decltype(&cublasLtMatmul) matmul = SLIP_FIND(cublasLtMatmul);
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm = SLIP_FIND(cublasLtMatmulAlgoGetHeuristic);
  decltype(&cublasLtMatmulDescCreate) create_product = SLIP_FIND(cublasLtMatmulDescCreate);
  decltype(&cublasLtMatmulDescSetAttribute) set_product = SLIP_FIND(cublasLtMatmulDescSetAttribute);
  decltype(&cublasLtMatmulDescDestroy) destroy_product = SLIP_FIND(cublasLtMatmulDescDestroy);
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = SLIP_FIND(cublasLtMatmulPreferenceCreate);
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = SLIP_FIND(cublasLtMatmulPreferenceSetAttribute);
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = SLIP_FIND(cublasLtMatmulPreferenceDestroy);
  decltype(&cublasLtMatrixLayoutCreate) create_layout = SLIP_FIND(cublasLtMatrixLayoutCreate);
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = SLIP_FIND(cublasLtMatrixLayoutDestroy);
};
#undef SLIP_FIND

// Throws kUnsupported, which names the library file, if cuBLASLt is not installed.
const CublasLt& cublas_lt() {
  static const CublasLt kFunctions;
  return kFunctions;
}

int current_gpu() {
  int gpu = 0;
  backend::check(cudaGetDevice(&gpu), "cudaGetDevice", -1);
  return gpu;
}

void checked(cublasStatus_t status, const char* call, const LinearSizes& sizes) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  base::fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kLaunchFailed, {},
             "{} on cuda:{} for {} tokens, weight {} [{}, {}], rows {} to {}: {}", call, current_gpu(), sizes.tokens,
             data_type_name(sizes.type), sizes.out, sizes.in, sizes.first, sizes.first + sizes.rows,
             cublas_lt().status_string(status));
}

// Destroys the objects that cuBLASLt creates.
template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* made) const {
    (cublas_lt().*kDestroy)(made);
  }
};
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<&CublasLt::destroy_layout>>;
using Product = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<&CublasLt::destroy_product>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<&CublasLt::destroy_preference>>;

// The arguments of cublasLtMatmul, which is column-major: y^T [rows, tokens] = w [rows, in] * x^T [in, tokens].
struct Matmul {
  Product product;
  Layout weight, from, into;  // of w, x and y
  cublasLtMatmulAlgo_t algorithm;
};

Layout layout_of(cudaDataType_t type, std::size_t rows, std::size_t columns, std::size_t stride,
                 const LinearSizes& sizes) {
  cublasLtMatrixLayout_t made = nullptr;
  checked(cublas_lt().create_layout(&made, type, rows, columns, static_cast<std::int64_t>(stride)),
          "cublasLtMatrixLayoutCreate", sizes);
  return Layout(made);
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, T value,
         const LinearSizes& sizes) {
  checked(cublas_lt().set_preference(preference, what, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute",
          sizes);
}

// The greatest power of two that divides the address, at most 16: no chosen algorithm requires more. So all
// tensors at multiples of 16 bytes get the same algorithm and the same bits.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 16;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

struct Alignments {  // in bytes, of w, x and y
  std::uint32_t weight, from, into;
  auto operator<=>(const Alignments&) const = default;
};

// Asks cuBLASLt for its best algorithm without a workspace.
std::unique_ptr<Matmul> choose_matmul(cublasLtHandle_t handle, const LinearSizes& sizes, const Alignments& alignments) {
  const cudaDataType_t type = sizes.type == DataType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
  auto matmul = std::make_unique<Matmul>();
  cublasLtMatmulDesc_t product = nullptr;
  // CUBLAS_COMPUTE_32F: floats are not rounded to TF32.
  checked(cublas_lt().create_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", sizes);
  matmul->product.reset(product);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  checked(cublas_lt().set_product(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
          "cublasLtMatmulDescSetAttribute", sizes);
  matmul->weight = layout_of(type, sizes.in, sizes.rows, sizes.in, sizes);
  matmul->from = layout_of(type, sizes.in, sizes.tokens, sizes.in, sizes);
  matmul->into = layout_of(type, sizes.rows, sizes.tokens, sizes.out, sizes);
  cublasLtMatmulPreference_t made = nullptr;
  checked(cublas_lt().create_preference(&made), "cublasLtMatmulPreferenceCreate", sizes);
  const Preference preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0}, sizes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.weight, sizes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.from, sizes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.into, sizes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.into, sizes);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  checked(cublas_lt().find_algorithm(handle, product, matmul->weight.get(), matmul->from.get(), matmul->into.get(),
                                     matmul->into.get(), made, 1, &found, &count),
          "cublasLtMatmulAlgoGetHeuristic", sizes);
  if (count == 0) checked(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", sizes);
  matmul->algorithm = found.algo;
  return matmul;
}

using Key = std::tuple<DataType, std::size_t, std::size_t, std::size_t, std::size_t, Alignments>;

// The state for one GPU. Never destroyed: at exit the CUDA runtime may be shut down already.
struct GpuState {
  base::Mutex mutex;
  cublasLtHandle_t handle SLIP_GUARDED_BY(mutex) = nullptr;
  std::map<Key, std::unique_ptr<Matmul>> matmuls SLIP_GUARDED_BY(mutex);
};

GpuState& state_of(int gpu) {
  static auto* const kMutex = new base::Mutex;
  static auto* const kStates SLIP_PT_GUARDED_BY(kMutex) = new std::map<int, std::unique_ptr<GpuState>>;
  const base::LockGuard lock(*kMutex);
  std::unique_ptr<GpuState>& state = (*kStates)[gpu];
  if (!state) state = std::make_unique<GpuState>();
  return *state;
}

struct FoundMatmul {
  cublasLtHandle_t handle;
  const Matmul* matmul;
};

FoundMatmul matmul_for(const LinearSizes& sizes, const Alignments& alignments) {
  GpuState& state = state_of(current_gpu());
  const base::LockGuard lock(state.mutex);
  if (!state.handle) checked(cublas_lt().create(&state.handle), "cublasLtCreate", sizes);
  std::unique_ptr<Matmul>& matmul =
      state.matmuls[{sizes.type, sizes.tokens, sizes.in, sizes.out, sizes.rows, alignments}];
  if (!matmul) matmul = choose_matmul(state.handle, sizes, alignments);
  return {state.handle, matmul.get()};
}

}  // namespace

void linear(const Args& args, CUstream_st* stream) {
  const LinearSizes sizes = LinearSizes::of(args);
  const void* const x = args.in<std::byte>(0).data();
  const void* const w = args.in<std::byte>(1).data();
  void* const y = args.out<std::byte>(0).data() + sizes.first * bytes_of(sizes.type);
  const FoundMatmul found = matmul_for(sizes, {alignment_of(w), alignment_of(x), alignment_of(y)});
  const float one = 1, zero = 0;
  checked(cublas_lt().matmul(found.handle, found.matmul->product.get(), &one, w, found.matmul->weight.get(), x,
                             found.matmul->from.get(), &zero, y, found.matmul->into.get(), y, found.matmul->into.get(),
                             &found.matmul->algorithm, nullptr, 0, stream),
          "cublasLtMatmul", sizes);
}

}  // namespace slip::model::cuda
