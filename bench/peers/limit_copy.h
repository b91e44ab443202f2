// limit_copy.h - --kind copy of limit_bench.cpp.
#pragma once
#include "limit_common.h"

// Staging: per rank, two halves used in turn by consecutive chunks, and per
// rank and half a result area. One flag per step.
static char* st(int r, int half) { return stage + ((size_t)r * 4 + half) * stage_bytes; }
static char* rs(int r, int half) { return stage + ((size_t)r * 4 + 2 + half) * stage_bytes; }

static std::vector<OpImpl> copy_ops() {
  std::vector<OpImpl> v;
  auto allreduce = [](float* in, float* out, size_t n) -> RunFn {
    if (n * 4 <= kBox) return [=](int) { small_allreduce(in, out, n); };
    return [=](int) {
      const size_t C = stage_bytes / 4;
      // Chunk c: copy in | fence | reduce own slice to staging and out | fence
      // | copy the other slices out. Step c+1's copy-in runs before step c's
      // copy-out, so one fence covers both.
      size_t nc = (n + C - 1) / C;
      for (size_t c = 0; c <= nc; c++) {
        if (c < nc) {
          size_t o = c * C, m = std::min(C, n - o);
          size_t lo, hi;
          slice(m, R, lo, hi);
          memcpy(st(R, c & 1), in + o, lo * 4);
          memcpy(st(R, c & 1) + hi * 4, in + o + hi, (m - hi) * 4);
          fence_all();
          float *s[bench::kMaxRanks], *d[2] = {out + o, (float*)rs(R, c & 1)};
          for (int r = 0; r < N; r++) s[r] = r == R ? in + o : (float*)st(r, c & 1);
          reduce_to(d, 2, s, lo, hi);
        } else {
          fence_all();
        }
        if (c > 0) {  // all slices of chunk c-1 are complete: the fence above
          size_t o = (c - 1) * C, m = std::min(C, n - o);
          for (int k = 1; k < N; k++) {
            int r = (R + k) % N;
            size_t lo, hi;
            slice(m, r, lo, hi);
            memcpy(out + o + lo, (float*)rs(r, (c - 1) & 1) + lo, (hi - lo) * 4);
          }
        }
      }
      fence_all();  // staging may be reused
    };
  };
  v.push_back({"allreduce", "", allreduce});
  v.push_back({"allreduce_ip", "", [=](float* in, float*, size_t n) { return allreduce(in, in, n); }});
  // Pipelined one-way stream through staging, from root to all others.
  auto stream = [](float* b, float* dst, size_t n, int root) {
    const size_t C = stage_bytes / 4;
    size_t nc = (n + C - 1) / C;
    for (size_t c = 0; c <= nc; c++) {
      if (R == root && c < nc) memcpy(st(R, c & 1), b + c * C, std::min(C, n - c * C) * 4);
      if (R != root && c > 0) memcpy(dst + (c - 1) * C, st(root, (c - 1) & 1), std::min(C, n - (c - 1) * C) * 4);
      fence_all();
    }
  };
  v.push_back({"bcast", "",
               [=](float* b, float*, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int it) { small_bcast(b, n, it % N); };
                 return [=](int it) { stream(b, b, n, it % N); };
               },
               true});
  v.push_back({"pingpong", "", [=](float* in, float* out, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int) { small_pingpong(in, out, n); };
                 return [=](int) {
                   stream(in, out, n, 0);
                   stream(in, out, n, 1);
                 };
               }});
  auto exchange = [](size_t n, const std::function<void(size_t, size_t, char*)>& put,
                     const std::function<void(size_t, size_t, int)>& get) {
    const size_t C = stage_bytes / 4 / N;  // floats per peer and chunk
    size_t nc = (n + C - 1) / C;
    for (size_t c = 0; c <= nc; c++) {
      if (c < nc) put(c * C, std::min(C, n - c * C), st(R, c & 1));
      if (c > 0) get((c - 1) * C, std::min(C, n - (c - 1) * C), (c - 1) & 1);
      fence_all();
    }
  };
  v.push_back({"alltoall", "", [=](float* in, float* out, size_t n) -> RunFn {
                 if (n * N * 4 <= kBox) return [=](int) { small_alltoall(in, out, n); };
                 return [=](int) {
                   memcpy(out + R * n, in + R * n, n * 4);
                   exchange(
                       n,
                       [=](size_t o, size_t m, char* s) {
                         for (int r = 0; r < N; r++)
                           if (r != R) memcpy((float*)s + r * m, in + r * n + o, m * 4);
                       },
                       [=](size_t o, size_t m, int h) {
                         for (int k = 1; k < N; k++) {
                           int r = (R + k) % N;
                           memcpy(out + r * n + o, (float*)st(r, h) + R * m, m * 4);
                         }
                       });
                 };
               }});
  v.push_back({"reduce_scatter", "", [=](float* in, float* out, size_t n) -> RunFn {
                 if (n * N * 4 <= kBox) return [=](int) { small_rs(in, out, n); };
                 return [=](int) {
                   exchange(
                       n,
                       [=](size_t o, size_t m, char* s) {
                         for (int r = 0; r < N; r++)
                           if (r != R) memcpy((float*)s + r * m, in + r * n + o, m * 4);
                       },
                       [=](size_t o, size_t m, int h) {
                         add3(out + o, in + R * n + o, (float*)st((R + 1) % N, h) + R * m, m);
                         for (int k = 2; k < N; k++) add2(out + o, (float*)st((R + k) % N, h) + R * m, m);
                       });
                 };
               }});
  v.push_back({"allgather", "", [=](float* in, float* out, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int) { small_gather(in, out, n); };
                 return [=](int) {
                   memcpy(out + R * n, in, n * 4);
                   exchange(
                       n, [=](size_t o, size_t m, char* s) { memcpy(s, in + o, m * 4); },
                       [=](size_t o, size_t m, int h) {
                         for (int k = 1; k < N; k++) {
                           int r = (R + k) % N;
                           memcpy(out + r * n + o, st(r, h), m * 4);
                         }
                       });
                 };
               }});
  v.push_back({"sendrecv", "", [=](float* in, float* out, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int) { small_shift(in, out, n); };
                 return [=](int) {
                   exchange(
                       n, [=](size_t o, size_t m, char* s) { memcpy(s, in + o, m * 4); },
                       [=](size_t o, size_t m, int h) { memcpy(out + o, st((R + N - 1) % N, h), m * 4); });
                 };
               }});
  return v;
}
