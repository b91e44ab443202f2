// limit_common.h - what all kinds of limit_bench.cpp share: ranks, waiting, sums,
// and small messages through boxes in shared memory.
#pragma once
#include "bench_common.h"

using bench::OpImpl;
using bench::RunFn;

static int R, N;      // rank, ranks
static bool oversub;  // more ranks than cores

static inline void relax_wait(int& spins) {
  if (oversub && ++spins > 50) sched_yield();
  else bench::cpu_relax();
}

static void add2(float* __restrict d, const float* __restrict a, size_t n) {
  for (size_t i = 0; i < n; i++) d[i] += a[i];
}
static void add3(float* d, const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; i++) d[i] = a[i] + b[i];
}

constexpr size_t kArea = size_t(1) << 30;  // shared user memory per rank
constexpr size_t kBox = 16384;             // eager payload
constexpr int kRing = 8;

struct Box {
  alignas(64) std::atomic<uint64_t> seq;  // shares its line with small payload
  char small[56];
  alignas(64) char big[kBox];
};
struct Shm {
  struct {
    alignas(64) std::atomic<uint64_t> v;
  } flag[bench::kMaxRanks], done[bench::kMaxRanks];
  Box box[bench::kMaxRanks][kRing];
};
static Shm* S;
static char* area;
static char* stage;
static size_t stage_bytes = 256 << 10;
static uint64_t op_no, flag_no;

static inline void wait_ge(std::atomic<uint64_t>& a, uint64_t v) {
  int sp = 0;
  while (a.load(std::memory_order_acquire) < v) relax_wait(sp);
}
static inline void fence_all() {  // barrier
  S->flag[R].v.store(++flag_no, std::memory_order_release);
  for (int r = 0; r < N; r++)
    if (r != R) wait_ge(S->flag[r].v, flag_no);
}
template <class T>
static T* peer(T* p, int r) {
  return (T*)((char*)p + ((int64_t)r - R) * (int64_t)kArea);
}

// Eager boxes: op number op_no, ring of kRing per rank.
static inline void post(const void* p, size_t n) {
  Box& b = S->box[R][op_no % kRing];
  if (op_no > kRing)
    for (int r = 0; r < N; r++)
      if (r != R) wait_ge(S->done[r].v, op_no - kRing);
  memcpy(n <= sizeof b.small ? b.small : b.big, p, n);
  b.seq.store(op_no, std::memory_order_release);
}
static inline const float* take(int r, size_t n) {
  Box& b = S->box[r][op_no % kRing];
  wait_ge(b.seq, op_no);
  return (const float*)(n <= sizeof b.small ? b.small : b.big);
}
static inline void finish() { S->done[R].v.store(op_no, std::memory_order_release); }

static void slice(size_t n, int r, size_t& lo, size_t& hi) {
  size_t q = ((n + N - 1) / N + 15) & ~size_t(15);
  lo = std::min(n, q * r);
  hi = std::min(n, q * (r + 1));
}

// d0..d(k-1)[i] = sum of s0..s(N-1)[i]
static void reduce_to(float* const* d, int k, float* const* s, size_t lo, size_t hi) {
  if (N == 2 && k == 2) {
    float *x = d[0], *y = d[1];
    const float *a = s[0], *b = s[1];
#pragma GCC ivdep
    for (size_t i = lo; i < hi; i++) {
      float v = a[i] + b[i];
      x[i] = v;
      y[i] = v;
    }
    return;
  }
  float tmp[1024];
  for (size_t i = lo; i < hi; i += 1024) {
    size_t m = std::min<size_t>(1024, hi - i);
    float* t = k == 1 ? d[0] + i : tmp;
    add3(t, s[0] + i, s[1] + i, m);
    for (int r = 2; r < N; r++) add2(t, s[r] + i, m);
    if (k > 1)
      for (int j = 0; j < k; j++) memcpy(d[j] + i, tmp, m * 4);
  }
}

static void small_allreduce(const float* in, float* out, size_t n) {
  op_no++;
  post(in, n * 4);
  const float* p[bench::kMaxRanks];
  for (int r = 0; r < N; r++) p[r] = r == R && in != out ? in : take(r, n * 4);
  add3(out, p[0], p[1], n);
  for (int r = 2; r < N; r++) add2(out, p[r], n);
  finish();
}
static void small_gather(const float* in, float* out, size_t n) {
  op_no++;
  post(in, n * 4);
  memcpy(out + R * n, in, n * 4);
  for (int r = 0; r < N; r++)
    if (r != R) memcpy(out + r * n, take(r, n * 4), n * 4);
  finish();
}
static void small_bcast(float* b, size_t n, int root) {
  op_no++;
  if (R == root) post(b, n * 4);
  else memcpy(b, take(root, n * 4), n * 4);
  finish();
}
static void small_shift(const float* in, float* out, size_t n) {  // sendrecv to next
  op_no++;
  post(in, n * 4);
  memcpy(out, take((R + N - 1) % N, n * 4), n * 4);
  finish();
}
static void small_alltoall(const float* in, float* out, size_t n) {  // posts all, reads own part
  op_no++;
  post(in, n * N * 4);
  for (int r = 0; r < N; r++) memcpy(out + r * n, (r == R ? in : take(r, n * N * 4)) + R * n, n * 4);
  finish();
}
static void small_rs(const float* in, float* out, size_t n) {
  op_no++;
  post(in, n * N * 4);
  const float* p[bench::kMaxRanks];
  for (int r = 0; r < N; r++) p[r] = (r == R ? in : take(r, n * N * 4)) + R * n;
  add3(out, p[0], p[1], n);
  for (int r = 2; r < N; r++) add2(out, p[r], n);
  finish();
}
static void small_pingpong(const float* in, float* out, size_t n) {
  for (int k = 0; k < 2; k++) {
    op_no++;
    if (R == k) post(in, n * 4);
    else memcpy(out, take(k, n * 4), n * 4);
    finish();
  }
}
