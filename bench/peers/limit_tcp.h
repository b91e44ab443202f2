// limit_tcp.h - --kind tcp of limit_bench.cpp.
#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "limit_common.h"

static int fds[bench::kMaxRanks];

struct Xfer {
  int peer;
  bool send;
  char* p;  // where to send from / receive to
  size_t len, at = 0, got = 0;
  bool add = false;  // receive: add floats to p
};
constexpr size_t kPiece = 128 << 10, kCall = 256 << 10;

static void run_xfers(Xfer* x, int k) {
  static char* scratch = (char*)aligned_alloc(64, bench::kMaxRanks * kPiece);
  const bool block = oversub;
  for (;;) {
    bool busy = false, moved = false;
    for (int i = 0; i < k; i++) {
      Xfer& t = x[i];
      if (t.at >= t.len) continue;
      busy = true;
      ssize_t n;
      if (t.send) {
        n = send(fds[t.peer], t.p + t.at, std::min(kCall, t.len - t.at), MSG_DONTWAIT);
        if (n > 0) t.at += n;
      } else if (t.add) {
        char* s = scratch + (size_t)t.peer * kPiece;
        size_t want = std::min(kPiece, t.len - t.at);
        n = recv(fds[t.peer], s + t.got, want - t.got, MSG_DONTWAIT);
        if (n > 0) {
          t.got += n;
          if (t.got == want) {
            add2((float*)(t.p + t.at), (float*)s, want / 4);
            t.at += want;
            t.got = 0;
          }
        }
      } else {
        n = recv(fds[t.peer], t.p + t.at, std::min(kCall, t.len - t.at), MSG_DONTWAIT);
        if (n > 0) t.at += n;
      }
      if (n > 0) moved = true;
      else if (n == 0 || errno != EAGAIN) {
        perror("limit tcp");
        _exit(1);
      }
    }
    if (!busy) return;
    if (block && !moved) {
      pollfd p[2 * bench::kMaxRanks];
      int m = 0;
      for (int i = 0; i < k; i++)
        if (x[i].at < x[i].len) p[m++] = {fds[x[i].peer], (short)(x[i].send ? POLLOUT : POLLIN), 0};
      poll(p, m, 1000);
    }
  }
}

static std::vector<OpImpl> tcp_ops() {
  std::vector<OpImpl> v;
  auto allreduce = [](float* in, float* out, size_t n) -> RunFn {
    return [=](int) {
      Xfer x[2 * bench::kMaxRanks];
      int k = 0;
      if (n * 4 <= 32768) {  // exchange everything, add locally
        static float* tmp = (float*)aligned_alloc(64, bench::kMaxRanks * 32768);
        for (int j = 1; j < N; j++) {
          int r = (R + j) % N;
          x[k++] = {r, true, (char*)in, n * 4};
          x[k++] = {r, false, (char*)(tmp + r * 8192), n * 4};
        }
        run_xfers(x, k);
        add3(out, in, tmp + ((R + 1) % N) * 8192, n);
        for (int j = 2; j < N; j++) add2(out, tmp + ((R + j) % N) * 8192, n);
        return;
      }
      size_t lo, hi;
      slice(n, R, lo, hi);
      if (in != out) memcpy(out + lo, in + lo, (hi - lo) * 4);
      for (int j = 1; j < N; j++) {
        int r = (R + j) % N;
        size_t a, b;
        slice(n, r, a, b);
        x[k++] = {r, true, (char*)(in + a), (b - a) * 4};
        x[k] = {r, false, (char*)(out + lo), (hi - lo) * 4};
        x[k++].add = true;
      }
      run_xfers(x, k);
      k = 0;
      for (int j = 1; j < N; j++) {
        int r = (R + j) % N;
        size_t a, b;
        slice(n, r, a, b);
        x[k++] = {r, true, (char*)(out + lo), (hi - lo) * 4};
        x[k++] = {r, false, (char*)(out + a), (b - a) * 4};
      }
      run_xfers(x, k);
    };
  };
  v.push_back({"allreduce", "", allreduce});
  v.push_back({"allreduce_ip", "", [=](float* in, float*, size_t n) { return allreduce(in, in, n); }});
  v.push_back({"bcast", "",
               [](float* b, float*, size_t n) -> RunFn {
                 return [=](int it) {
                   Xfer x[bench::kMaxRanks];
                   int k = 0, root = it % N;
                   if (R == root) {
                     for (int j = 1; j < N; j++) x[k++] = {(R + j) % N, true, (char*)b, n * 4};
                   } else x[k++] = {root, false, (char*)b, n * 4};
                   run_xfers(x, k);
                 };
               },
               true});
  v.push_back({"allgather", "", [](float* in, float* out, size_t n) -> RunFn {
                 return [=](int) {
                   Xfer x[2 * bench::kMaxRanks];
                   int k = 0;
                   memcpy(out + R * n, in, n * 4);
                   for (int j = 1; j < N; j++) {
                     int r = (R + j) % N;
                     x[k++] = {r, true, (char*)in, n * 4};
                     x[k++] = {r, false, (char*)(out + r * n), n * 4};
                   }
                   run_xfers(x, k);
                 };
               }});
  v.push_back({"reduce_scatter", "", [](float* in, float* out, size_t n) -> RunFn {
                 return [=](int) {
                   Xfer x[2 * bench::kMaxRanks];
                   int k = 0;
                   memcpy(out, in + R * n, n * 4);
                   for (int j = 1; j < N; j++) {
                     int r = (R + j) % N;
                     x[k++] = {r, true, (char*)(in + r * n), n * 4};
                     x[k] = {r, false, (char*)out, n * 4};
                     x[k++].add = true;
                   }
                   run_xfers(x, k);
                 };
               }});
  v.push_back({"alltoall", "", [](float* in, float* out, size_t n) -> RunFn {
                 return [=](int) {
                   Xfer x[2 * bench::kMaxRanks];
                   int k = 0;
                   memcpy(out + R * n, in + R * n, n * 4);
                   for (int j = 1; j < N; j++) {
                     int r = (R + j) % N;
                     x[k++] = {r, true, (char*)(in + r * n), n * 4};
                     x[k++] = {r, false, (char*)(out + r * n), n * 4};
                   }
                   run_xfers(x, k);
                 };
               }});
  v.push_back({"sendrecv", "", [](float* in, float* out, size_t n) -> RunFn {
                 return [=](int) {
                   Xfer x[2] = {{(R + 1) % N, true, (char*)in, n * 4}, {(R + N - 1) % N, false, (char*)out, n * 4}};
                   run_xfers(x, 2);
                 };
               }});
  v.push_back({"pingpong", "", [](float* in, float* out, size_t n) -> RunFn {
                 return [=](int) {
                   Xfer s = {1 - R, true, (char*)in, n * 4}, r = {1 - R, false, (char*)out, n * 4};
                   run_xfers(R == 0 ? &s : &r, 1);
                   run_xfers(R == 0 ? &r : &s, 1);
                 };
               }});
  return v;
}

static void tcp_pair(int f[2]) {
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  sockaddr_in a{};
  socklen_t n = sizeof a;
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(l, (sockaddr*)&a, sizeof a);
  listen(l, 1);
  getsockname(l, (sockaddr*)&a, &n);
  f[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(f[0], (sockaddr*)&a, sizeof a)) {
    perror("connect");
    exit(1);
  }
  f[1] = accept(l, nullptr, nullptr);
  close(l);
  for (int i = 0; i < 2; i++) setsockopt(f[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
