// limit_bench.cpp - the same operations done by hand, with nothing of a
// library in the way, under the common driver. Not a library: no generality,
// no errors, no threads. It marks what the machine allows per operation and
// size, and shows how a bench program for a new library looks.
//
//   --kind shm   every user buffer lies in shared memory, peers read and write
//                it directly (zero copy); small messages go through a cache
//                line that carries flag and payload.
//   --kind copy  user buffers are private, as in every peer measured here:
//                data crosses through shared staging of --stage bytes per
//                rank (default 256K), copy in, flag, reduce or copy out.
//   --kind tcp   one non-blocking loopback socket per pair, one thread, large
//                calls, reduction fused with receiving.
#include <sys/wait.h>

#include "limit_copy.h"
#include "limit_shm.h"
#include "limit_tcp.h"

int main(int argc, char** argv) {
  bench::Opts o = bench::parse(argc, argv);
  std::string kind = "shm";
  for (size_t i = 0; i + 1 < o.rest.size(); i++) {
    if (o.rest[i] == "--kind") kind = o.rest[i + 1];
    if (o.rest[i] == "--stage") stage_bytes = atol(o.rest[i + 1].c_str());
  }
  N = o.ranks;
  oversub = N > bench::ncpu();
  auto map = [](size_t n) {
    return mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  S = (Shm*)map(sizeof(Shm));
  area = (char*)map(kArea * N);
  stage = (char*)map(stage_bytes * 4 * N);
  std::vector<std::vector<int>> f(N, std::vector<int>(N, -1));
  if (kind == "tcp")
    for (int i = 0; i < N; i++)
      for (int j = i + 1; j < N; j++) {
        int p[2];
        tcp_pair(p);
        f[i][j] = p[0];
        f[j][i] = p[1];
      }
  std::vector<pid_t> kids;
  for (R = 0; R < N; R++) {
    pid_t p = fork();
    if (p) {
      kids.push_back(p);
      continue;
    }
    for (int j = 0; j < N; j++) fds[j] = f[R][j];
    {
      bench::Driver d(o, R, N);
      size_t used = 0;
      if (kind == "shm") {
        d.alloc = [&](size_t b) {
          char* p = area + R * kArea + used;
          used += (b + 8191) & ~size_t(4095);
          memset(p, 0, b);
          return (float*)p;
        };
        d.release = [&](float*, size_t b) { used -= (b + 8191) & ~size_t(4095); };
      }
      d.run(kind == "shm" ? shm_ops() : kind == "copy" ? copy_ops() : tcp_ops());
      d.barrier();
    }
    fflush(stdout);
    _exit(0);
  }
  int rc = 0;
  for (pid_t p : kids) {
    int st;
    waitpid(p, &st, 0);
    if (st) rc = 1;
  }
  return rc;
}
