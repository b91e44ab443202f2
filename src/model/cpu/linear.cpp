// linear on the cpu: y = x * w^T in tiles, which all cores claim one by one.
//
// Tiles begin at multiples of their size in the whole weight, not in the part of this call. One tile computes the whole
// sum of an element. So the bits do not depend on the parts, the number of cores or the order of tiles.
//
// OpenBLAS multiplies a tile on the thread that claimed it, if the machine has OpenBLAS and there are enough tokens.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "base/sync.hpp"
#include "base/team.hpp"
#include "base/thread.hpp"
#include "model/cpu/types.hpp"
#include "model/kernels.hpp"

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
//
// cblas_sgemm of a build with 32-bit integers. The first three arguments are enumerations of C.
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                       int a_stride, const float* b, int b_stride, float beta, float* c, int c_stride);
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;

Sgemm open_blas() {
#if !SLIP_USES_OPENBLAS
  return nullptr;
#endif
  // Fedora's build with threads, then the usual name.
  for (const char* const name : {"libopenblasp.so.0", "libopenblas.so.0"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    const auto parallel = reinterpret_cast<int (*)()>(::dlsym(library, "openblas_get_parallel"));
    const auto set_threads = reinterpret_cast<void (*)(int)>(::dlsym(library, "openblas_set_num_threads"));
    const auto sgemm = reinterpret_cast<Sgemm>(::dlsym(library, "cblas_sgemm"));
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
    return sgemm;
  }
  return nullptr;
}

// Loads OpenBLAS on the first call. Null: it is not there, or it was built without threads. Such a build does
// not lock its memory: two threads that call it at the same time get wrong products. Also null with
// -DSLIP_OPENBLAS=OFF.
Sgemm blas() {
  static const Sgemm kSgemm = open_blas();
  return kSgemm;
}

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

// x [tokens, in], w [rows, in], y [tokens, rows]. REQUIRES: blas().
void gemm(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum) {
  if (!enter()) return multiply_plainly(sizes, x, w, y, sum);
  const auto number = [](std::size_t value) { return static_cast<int>(value); };
  blas()(kRowMajor, kNoTranspose, kTranspose, number(sizes.tokens), number(sizes.rows), number(sizes.in), 1.0F, x.data,
         number(x.stride), w.data, number(w.stride), sum == Sum::kAdd ? 1.0F : 0.0F, y.data, number(y.stride));
  leave();
}

// A product y = x * w^T by dot products. They are used for few tokens, when the memory bandwidth for the weight limits
// the time, and for every tile on a machine without a BLAS.
template <class T>
struct Product {
  const float* x = nullptr;
  const T* w = nullptr;
  T* y = nullptr;
  std::size_t in = 0, y_stride = 0;  // row lengths of x and w, which are dense; elements between rows of y
};

// Multiplies kRows rows of w with kTokens rows of x. Each result is computed in four partial sums, which are added at
// the end. So its bits do not depend on kRows and kTokens.
template <std::size_t kRows, std::size_t kTokens, class T>
void dot_block(const Product<T>& product, std::size_t row, std::size_t token) {
  const T* w = product.w + row * product.in;
  const float* x = product.x + token * product.in;
  Floats sums[kRows][kTokens] = {};
  std::size_t i = 0;
  for (; i + 8 <= product.in; i += 8) {
    Eight from[kTokens];
    for (std::size_t t = 0; t < kTokens; ++t) from[t] = load(x + t * product.in + i);
    for (std::size_t r = 0; r < kRows; ++r) {
      const Eight weights = load(w + r * product.in + i);
      for (std::size_t t = 0; t < kTokens; ++t) sums[r][t] += weights.low * from[t].low;
      for (std::size_t t = 0; t < kTokens; ++t) sums[r][t] += weights.high * from[t].high;
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t t = 0; t < kTokens; ++t) {
      const Floats& sum = sums[r][t];
      float result = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      for (std::size_t rest = i; rest < product.in; ++rest)
        result += base::to_float(w[r * product.in + rest]) * x[t * product.in + rest];
      product.y[(token + t) * product.y_stride + row + r] = base::from_float<T>(result);
    }
  }
}

// Rows [row, row_end) with kTokens tokens, four rows at a time: enough loads in flight to saturate the memory
// bandwidth.
template <std::size_t kTokens, class T>
void dot_rows(const Product<T>& product, std::size_t row, std::size_t row_end, std::size_t token) {
  for (; row + 4 <= row_end; row += 4) dot_block<4, kTokens>(product, row, token);
  for (; row < row_end; ++row) dot_block<1, kTokens>(product, row, token);
}

// Rows [row, row_end) with tokens [token, token_end).
template <class T>
void dot_tile(const Product<T>& product, std::size_t row, std::size_t row_end, std::size_t token,
              std::size_t token_end) {
  for (; token + 4 <= token_end; token += 4) dot_rows<4>(product, row, row_end, token);
  if (token + 3 == token_end) dot_rows<3>(product, row, row_end, token);
  else if (token + 2 == token_end) dot_rows<2>(product, row, row_end, token);
  else if (token + 1 == token_end) dot_rows<1>(product, row, row_end, token);
}

// Up to this many tokens dot products are faster than packing for a BLAS. Measured: twice as fast at 8 tokens, equally
// fast at 32.
constexpr std::size_t kFewTokens = 16;
constexpr std::size_t kTileRows = 128;    // of the weight; packing x takes 15 % of a tile's time at 64 rows, 4 % at 128
constexpr std::size_t kTileTokens = 256;  // of x
constexpr std::size_t kDepth = 1024;      // bf16: columns converted at a time; tile and x stay in the cache
constexpr std::size_t kDotBytes = 65536;  // of the weight in one task, for few tokens
constexpr std::size_t kMaxBlas = 0x7fffffff;  // sizes of a BLAS are ints
static_assert(model::kPartRows % kTileRows == 0);

struct Tile {
  std::size_t row, rows, token, tokens;
};

// Calls function(tile) for all tiles of the part.
template <class Function>
void for_each_tile(const model::LinearSizes& sizes, std::size_t tile_rows, std::size_t tile_tokens, Function function) {
  const std::size_t down = (sizes.rows + tile_rows - 1) / tile_rows;
  const std::size_t across = (sizes.tokens + tile_tokens - 1) / tile_tokens;
  base::for_each_index(down * across, [&](std::size_t index) {
    // Tokens vary fastest: cores that work at the same time share a tile of the weight.
    const std::size_t row = index / across * tile_rows, token = index % across * tile_tokens;
    function(Tile{row, std::min(tile_rows, sizes.rows - row), token, std::min(tile_tokens, sizes.tokens - token)});
  });
}

// Memory of this thread, kept for its later calls.
float* scratch(std::vector<float>& kept, std::size_t elements) {
  if (kept.size() < elements) kept.resize(elements);
  return kept.data();
}

void widen(const base::Bf16* from, std::size_t elements, float* into) {
  for (std::size_t i = 0; i < elements; ++i) into[i] = base::to_float(from[i]);
}

// x as floats: x itself, or converted by all cores into memory of the calling thread.
const float* as_floats(const float* x, std::size_t) { return x; }
const float* as_floats(const base::Bf16* x, std::size_t elements) {
  thread_local std::vector<float> kept;
  float* const into = scratch(kept, elements);
  constexpr std::size_t kRun = 65536;
  base::for_each_run(elements, kRun,
                     [=](std::size_t from, std::size_t to) { widen(x + from, to - from, into + from); });
  return into;
}

void multiply_tile(const model::LinearSizes& sizes, const Tile& tile, const float* x, const float* w, float* y) {
  gemm({.tokens = tile.tokens, .rows = tile.rows, .in = sizes.in}, {x + tile.token * sizes.in, sizes.in},
       {w + tile.row * sizes.in, sizes.in}, {y + tile.token * sizes.out + tile.row, sizes.out}, Sum::kSet);
}

void multiply_tile(const model::LinearSizes& sizes, const Tile& tile, const float* x, const base::Bf16* w,
                   base::Bf16* y) {
  thread_local std::vector<float> kept_weights, kept_sums;
  float* const weights = scratch(kept_weights, kTileRows * kDepth);
  float* const sums = scratch(kept_sums, kTileTokens * kTileRows);
  for (std::size_t from = 0; from < sizes.in; from += kDepth) {
    const std::size_t depth = std::min(kDepth, sizes.in - from);
    for (std::size_t row = 0; row < tile.rows; ++row)
      widen(w + (tile.row + row) * sizes.in + from, depth, weights + row * kDepth);
    gemm({.tokens = tile.tokens, .rows = tile.rows, .in = depth}, {x + tile.token * sizes.in + from, sizes.in},
         {weights, kDepth}, {sums, kTileRows}, from == 0 ? Sum::kSet : Sum::kAdd);
  }
  for (std::size_t token = 0; token < tile.tokens; ++token) {
    base::Bf16* const into = y + (tile.token + token) * sizes.out + tile.row;
    for (std::size_t row = 0; row < tile.rows; ++row)
      into[row] = base::from_float<base::Bf16>(sums[token * kTileRows + row]);
  }
}

template <class T>
void linear_of(const Args& args, const model::LinearSizes& sizes) {
  const float* const x = as_floats(args.in<T>(0).data(), sizes.tokens * sizes.in);
  const T* const w = args.in<T>(1).data();
  T* const y = args.out<T>(0).data() + sizes.first;
  if (sizes.tokens <= kFewTokens || !blas() || std::max(sizes.in, sizes.out) > kMaxBlas) {
    const Product<T> product{x, w, y, sizes.in, sizes.out};
    const std::size_t rows =
        sizes.tokens <= kFewTokens
            ? std::clamp<std::size_t>(kDotBytes / (sizes.in * sizeof(T)) / 4 * 4, 4, model::kPartRows)
            : kTileRows;
    for_each_tile(sizes, rows, kTileTokens, [&](const Tile& tile) {
      dot_tile(product, tile.row, tile.row + tile.rows, tile.token, tile.token + tile.tokens);
    });
  } else {
    for_each_tile(sizes, kTileRows, kTileTokens, [&](const Tile& tile) { multiply_tile(sizes, tile, x, w, y); });
  }
}

}  // namespace

void linear(const Args& args) {
  const model::LinearSizes sizes = model::LinearSizes::of(args);
  with_type(sizes.type, [&]<class T>(T) { linear_of<T>(args, sizes); });
}

}  // namespace slip::model::cpu
