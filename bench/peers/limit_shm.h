// limit_shm.h - --kind shm of limit_bench.cpp.
#pragma once
#include "limit_common.h"

static std::vector<OpImpl> shm_ops() {
  std::vector<OpImpl> v;
  auto allreduce = [](float* in, float* out, size_t n) -> RunFn {
    if (n * 4 <= kBox) return [=](int) { small_allreduce(in, out, n); };
    return [=](int) {
      float *d[bench::kMaxRanks], *s[bench::kMaxRanks];
      size_t lo, hi;
      slice(n, R, lo, hi);
      for (int r = 0; r < N; r++) s[r] = peer(in, r), d[r] = peer(out, r);
      fence_all();
      reduce_to(d, N, s, lo, hi);
      fence_all();
    };
  };
  v.push_back({"allreduce", "", allreduce});
  v.push_back({"allreduce_ip", "", [=](float* in, float*, size_t n) { return allreduce(in, in, n); }});
  v.push_back({"bcast", "",
               [](float* b, float*, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int it) { small_bcast(b, n, it % N); };
                 return [=](int it) {
                   fence_all();
                   if (R != it % N) memcpy(b, peer(b, it % N), n * 4);
                   fence_all();
                 };
               },
               true});
  v.push_back({"allgather", "", [](float* in, float* out, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int) { small_gather(in, out, n); };
                 return [=](int) {
                   fence_all();
                   for (int k = 0; k < N; k++) {
                     int r = (R + k) % N;
                     memcpy(out + r * n, peer(in, r), n * 4);
                   }
                   fence_all();
                 };
               }});
  v.push_back({"reduce_scatter", "", [](float* in, float* out, size_t n) -> RunFn {
                 if (n * N * 4 <= kBox) return [=](int) { small_rs(in, out, n); };
                 return [=](int) {
                   float* s[bench::kMaxRanks];
                   for (int r = 0; r < N; r++) s[r] = peer(in, r) + R * n;
                   fence_all();
                   reduce_to(&out, 1, s, 0, n);
                   fence_all();
                 };
               }});
  v.push_back({"alltoall", "", [](float* in, float* out, size_t n) -> RunFn {
                 if (n * N * 4 <= kBox) return [=](int) { small_alltoall(in, out, n); };
                 return [=](int) {
                   fence_all();
                   for (int k = 0; k < N; k++) {
                     int r = (R + k) % N;
                     memcpy(out + r * n, peer(in, r) + R * n, n * 4);
                   }
                   fence_all();
                 };
               }});
  v.push_back({"sendrecv", "", [](float* in, float* out, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int) { small_shift(in, out, n); };
                 return [=](int) {
                   fence_all();
                   memcpy(out, peer(in, (R + N - 1) % N), n * 4);
                   fence_all();
                 };
               }});
  v.push_back({"pingpong", "", [](float* in, float* out, size_t n) -> RunFn {
                 if (n * 4 <= kBox) return [=](int) { small_pingpong(in, out, n); };
                 return [=](int) {
                   for (int k = 0; k < 2; k++) {
                     uint64_t f = ++flag_no;
                     if (R == k) S->flag[R].v.store(f, std::memory_order_release);
                     else {
                       wait_ge(S->flag[k].v, f);
                       memcpy(out, peer(in, k), n * 4);
                     }
                   }
                 };
               }});
  v.push_back({"barrier", "", [](float*, float*, size_t) -> RunFn { return [](int) { fence_all(); }; }});
  return v;
}
