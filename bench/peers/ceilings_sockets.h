// ceilings_sockets.h - TCP and Unix sockets for ceilings.cpp.
#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "ceilings_common.h"

static void pair_tcp(int fd[2], int buf) {
  int l = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof a;
  if (buf) setsockopt(l, SOL_SOCKET, SO_RCVBUF, &buf, sizeof buf);
  bind(l, (sockaddr*)&a, sizeof a);
  listen(l, 8);
  getsockname(l, (sockaddr*)&a, &n);
  fd[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (buf)
    setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &buf, sizeof buf),
        setsockopt(fd[0], SOL_SOCKET, SO_RCVBUF, &buf, sizeof buf);
  if (connect(fd[0], (sockaddr*)&a, sizeof a)) perror("connect");
  fd[1] = accept(l, nullptr, nullptr);
  if (buf) setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &buf, sizeof buf);
  close(l);
  int one = 1;
  for (int i = 0; i < 2; i++) setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void io_all(int fd, char* p, size_t n, bool wr, bool spin) {
  while (n) {
    ssize_t k = wr ? send(fd, p, n, spin ? MSG_DONTWAIT : 0) : recv(fd, p, n, spin ? MSG_DONTWAIT : 0);
    if (k > 0) p += k, n -= k;
    else if (k == 0 || errno != EAGAIN) {
      perror("socket");
      _exit(1);
    }
  }
}

static void sock_pingpong(const char* kind, size_t bytes, bool spin, bool same_core = false) {
  int fd[2];
  if (!strcmp(kind, "tcp")) pair_tcp(fd, 0);
  else socketpair(AF_UNIX, SOCK_STREAM, 0, fd);
  struct S {
    double out[256];
  };
  S* s = shared<S>(1);
  const int iters = bytes > 1000000 ? 10 : bytes > 100000 ? 100 : 2000;
  const int reps = std::max(5, (int)(20 * g_scale));
  procs(
      2,
      [&](int r) {
        std::vector<char> b(bytes, 1);
        for (int i = 0; i < reps; i++) {
          double t0 = now_us();
          for (int j = 0; j < iters; j++) {
            io_all(fd[r], b.data(), bytes, r == 0, spin);
            io_all(fd[r], b.data(), bytes, r == 1, spin);
          }
          if (r == 0) s->out[i] = (now_us() - t0) / iters / 2;
        }
      },
      same_core);
  close(fd[0]);
  close(fd[1]);
  report((std::string(kind) + " ping-pong, one way").c_str(),
         hum(bytes) + (spin ? ", spinning recv" : ", blocking recv") + (same_core ? ", same core" : ""), "us",
         std::vector<double>(s->out + 1, s->out + reps), false);
}

// One way: process 0 sends on k sockets, process 1 receives. Both ways: each
// process sends and receives on k sockets, one thread, non-blocking, poll.
// Out of `total` bytes buffers are walked (not one hot chunk re-sent).
static void sock_stream(const char* kind, int k, bool both, int buf, size_t chunk) {
  std::vector<int> f0(k), f1(k);
  for (int i = 0; i < k; i++) {
    int fd[2];
    if (!strcmp(kind, "tcp")) pair_tcp(fd, buf);
    else socketpair(AF_UNIX, SOCK_STREAM, 0, fd);
    f0[i] = fd[0];
    f1[i] = fd[1];
  }
  struct S {
    Spin b;
    double t[2][2];
    double out[64];
  };
  S* s = shared<S>(1);
  const size_t total = 64u << 20;
  const int reps = std::max(5, (int)(12 * g_scale));
  procs(2, [&](int r) {
    char *sb = priv(total, false), *rb = priv(total, false);
    auto& fd = r == 0 ? f0 : f1;
    for (int i = 0; i < reps; i++) {
      size_t per = total / k;
      std::vector<size_t> so(k, both || r == 0 ? 0 : per), ro(k, both || r == 1 ? 0 : per);
      s->b.wait(2);
      double t0 = now_us();
      for (bool busy = true; busy;) {
        busy = false;
        bool moved = false;
        std::vector<pollfd> p(k);
        for (int q = 0; q < k; q++) {
          if (so[q] < per) {
            ssize_t n = send(fd[q], sb + q * per + so[q], std::min(chunk, per - so[q]), MSG_DONTWAIT);
            if (n > 0) so[q] += n, moved = true;
          }
          if (ro[q] < per) {
            ssize_t n = recv(fd[q], rb + q * per + ro[q], std::min(chunk, per - ro[q]), MSG_DONTWAIT);
            if (n > 0) ro[q] += n, moved = true;
          }
          p[q].fd = fd[q];
          p[q].events = (so[q] < per ? POLLOUT : 0) | (ro[q] < per ? POLLIN : 0);
          if (p[q].events) busy = true;
          else p[q].fd = -1;
        }
        if (busy && !moved) poll(p.data(), k, 1000);
      }
      s->t[r][0] = t0;
      s->t[r][1] = now_us();
      s->b.wait(2);
      if (r == 0) s->out[i] = total / (std::max(s->t[0][1], s->t[1][1]) - std::min(s->t[0][0], s->t[1][0])) / 1e3;
    }
  });
  for (int i = 0; i < k; i++) close(f0[i]), close(f1[i]);
  char par[96];
  snprintf(par, sizeof par, "%d socket%s, %s, buf %s, calls of %s", k, k > 1 ? "s" : "",
           both ? "both ways (GB/s each way)" : "one way", buf ? hum(buf).c_str() : "auto", hum(chunk).c_str());
  report((std::string(kind) + " stream").c_str(), par, "GB/s", std::vector<double>(s->out + 1, s->out + reps), true);
}
