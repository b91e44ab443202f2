// ceilings.cpp - what this machine can do at best, without any library:
// copy and add bandwidth, cache line hand-over, futex and scheduler hand-over,
// TCP and Unix socket latency and throughput on loopback.
//
// Prints TSV lines: CEIL name params unit best median worst reps
// "best" is the best repetition (max for GB/s, min for us), "worst" the other
// end. GB/s count payload once: bytes copied, or bytes of ONE add operand.
#include <sys/uio.h>

#include "ceilings_sockets.h"

__attribute__((noinline)) static void add3(float* __restrict c, const float* __restrict a, const float* __restrict b,
                                           size_t n) {
  for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
}
__attribute__((noinline)) static void add2(float* __restrict c, const float* __restrict a, size_t n) {
  for (size_t i = 0; i < n; i++) c[i] += a[i];
}

enum Kernel { kMemcpy, kAdd3, kAdd2, kRead };
static const char* kname[] = {"memcpy", "add c=a+b", "add c+=a", "read"};

static void stream(Kernel k, size_t bytes, int cores, bool thp) {
  struct S {
    Spin b;
    double t[16][2];
    double out[1024];
  };
  S* s = shared<S>(1);
  const int reps = std::max(5, (int)(g_scale * (bytes >= (64u << 20) ? 15 : 60)));
  procs(cores, [&](int r) {
    char *a = priv(bytes, thp), *b = priv(bytes, thp), *c = k == kAdd3 ? priv(bytes, thp) : b;
    const int inner = std::max<size_t>(1, (16u << 20) / bytes);
    volatile float sink = 0;
    for (int i = 0; i < reps; i++) {
      s->b.wait(cores);
      double t0 = now_us();
      for (int j = 0; j < inner; j++) {
        if (k == kMemcpy) {
          memcpy(b, a, bytes);
          asm volatile("" ::: "memory");
        }
        if (k == kAdd3) add3((float*)c, (float*)a, (float*)b, bytes / 4);
        if (k == kAdd2) add2((float*)b, (float*)a, bytes / 4);
        if (k == kRead) {
          float x0 = 0, x1 = 0, x2 = 0, x3 = 0;
          const float* f = (float*)a;
          for (size_t q = 0; q < bytes / 4; q += 16) {
            x0 += f[q];
            x1 += f[q + 4];
            x2 += f[q + 8];
            x3 += f[q + 12];
          }
          sink = sink + x0 + x1 + x2 + x3;
        }
      }
      s->t[r][0] = t0;
      s->t[r][1] = now_us();
      s->b.wait(cores);
      if (r == 0) {
        double lo = 1e300, hi = 0;
        for (int q = 0; q < cores; q++) lo = std::min(lo, s->t[q][0]), hi = std::max(hi, s->t[q][1]);
        s->out[i] = (double)bytes * inner * cores / (hi - lo) / 1e3;
      }
    }
  });
  report(kname[k], hum(bytes) + " x" + std::to_string(cores) + " core" + (thp ? " THP" : " 4K"), "GB/s",
         std::vector<double>(s->out + 1, s->out + reps), true);
  munmap(s, sizeof(S));
}

// Rank 0 has just written a shared buffer; rank 1 copies it to private memory.
static void cross_copy(size_t bytes) {
  struct S {
    Spin b;
    double out[512];
  };
  S* s = shared<S>(1);
  char* buf = shared<char>(bytes);
  const int reps = std::max(5, (int)(g_scale * (bytes >= (16u << 20) ? 20 : 200)));
  procs(2, [&](int r) {
    char* p = priv(bytes, false);
    for (int i = 0; i < reps; i++) {
      if (r == 0) memset(buf, i, bytes);
      s->b.wait(2);
      if (r == 1) {
        double t0 = now_us();
        memcpy(p, buf, bytes);
        asm volatile("" ::: "memory");
        s->out[i] = bytes / (now_us() - t0) / 1e3;
      }
      s->b.wait(2);
    }
  });
  report("copy of what the other core wrote", hum(bytes), "GB/s", std::vector<double>(s->out + 1, s->out + reps), true);
}

// process_vm_readv from a private buffer of the other process.
static void cma(size_t bytes, int cores) {
  struct S {
    Spin b;
    pid_t pid[2];
    char* addr[2];
    double t[2][2];
    double out[512];
  };
  S* s = shared<S>(1);
  const int reps = std::max(5, (int)(g_scale * (bytes >= (16u << 20) ? 15 : 100)));
  procs(2, [&](int r) {
    char *src = priv(bytes, false), *dst = priv(bytes, false);
    s->pid[r] = getpid();
    s->addr[r] = src;
    for (int i = 0; i < reps; i++) {
      s->b.wait(2);
      double t0 = now_us();
      if (r < cores) {
        iovec l{dst, bytes}, m{s->addr[1 - r], bytes};
        if (process_vm_readv(s->pid[1 - r], &l, 1, &m, 1, 0) != (ssize_t)bytes) perror("process_vm_readv");
      }
      s->t[r][0] = t0;
      s->t[r][1] = now_us();
      s->b.wait(2);
      if (r == 0) {
        double lo = s->t[0][0], hi = s->t[0][1];
        if (cores == 2) lo = std::min(lo, s->t[1][0]), hi = std::max(hi, s->t[1][1]);
        s->out[i] = (double)bytes * cores / (hi - lo) / 1e3;
      }
    }
  });
  report("process_vm_readv", hum(bytes) + " x" + std::to_string(cores) + " core", "GB/s",
         std::vector<double>(s->out + 1, s->out + reps), true);
}

static long futex(void* a, int op, int v) { return syscall(SYS_futex, a, op, v, nullptr, nullptr, 0); }

// One-way hand-over of a cache line between two processes.
static void line_pingpong(const char* how, bool same_core) {
  struct S {
    alignas(64) std::atomic<uint32_t> f[2 * 16];
    alignas(64) double out[256];
    Spin b;
  };
  S* s = shared<S>(1);
  std::string h = how;
  const int reps = std::max(5, (int)(30 * g_scale)), iters = h == "spin" ? 20000 : 2000;
  procs(
      2,
      [&](int r) {
        std::atomic<uint32_t>&mine = s->f[16 * r], &other = s->f[16 * (1 - r)];
        uint32_t v = 0;
        auto wait = [&](uint32_t want) {
          uint32_t x;
          while ((x = mine.load(std::memory_order_acquire)) != want) {
            if (h == "futex") futex(&mine, FUTEX_WAIT, (int)x);
            else if (h == "yield") sched_yield();
          }
        };
        auto post = [&](uint32_t x) {
          other.store(x, std::memory_order_release);
          if (h == "futex") futex(&other, FUTEX_WAKE, 1);
        };
        for (int i = 0; i < reps; i++) {
          s->b.wait(2, same_core);
          double t0 = now_us();
          for (int j = 0; j < iters; j++) {
            v++;
            if (r == 0) {
              post(v);
              wait(v);
            } else {
              wait(v);
              post(v);
            }
          }
          if (r == 0) s->out[i] = (now_us() - t0) / iters / 2;
        }
      },
      same_core);
  report("flag hand-over, one way", h + (same_core ? ", same core" : ", two cores"), "us",
         std::vector<double>(s->out + 1, s->out + reps), false);
}

// Time from FUTEX_WAKE to the first instruction of a process that sleeps.
static void futex_wake(bool same_core) {
  struct S {
    alignas(64) std::atomic<uint32_t> f, ready;
    alignas(64) double t;
    double out[4096];
  };
  S* s = shared<S>(1);
  const int iters = std::max(50, (int)(1000 * g_scale));
  procs(
      2,
      [&](int r) {
        for (uint32_t i = 1; i <= (uint32_t)iters; i++) {
          if (r == 1) {
            s->ready.store(i);
            while (s->f.load() != i) futex(&s->f, FUTEX_WAIT, (int)i - 1);
            s->out[i - 1] = now_us() - s->t;
          } else {
            while (s->ready.load() != i) sched_yield();
            usleep(100);  // let it fall asleep
            s->t = now_us();
            s->f.store(i);
            futex(&s->f, FUTEX_WAKE, 1);
          }
        }
      },
      same_core);
  report("futex wake of a sleeper", same_core ? "same core" : "two cores", "us",
         std::vector<double>(s->out + 1, s->out + iters), false);
}

int main(int argc, char** argv) {
  for (int i = 1; i < argc; i++)
    if (!strcmp(argv[i], "--quick")) g_scale = 0.3;
  for (size_t b :
       {size_t(32) << 10, size_t(256) << 10, size_t(2) << 20, size_t(16) << 20, size_t(64) << 20, size_t(256) << 20})
    for (Kernel k : {kMemcpy, kAdd3, kAdd2, kRead})
      for (int c : {1, 2}) stream(k, b, c, false);
  for (Kernel k : {kMemcpy, kAdd3})
    for (int c : {1, 2}) stream(k, size_t(64) << 20, c, true);
  for (size_t b : {size_t(4) << 10, size_t(32) << 10, size_t(256) << 10, size_t(2) << 20, size_t(16) << 20})
    cross_copy(b);
  for (size_t b : {size_t(4) << 10, size_t(32) << 10, size_t(256) << 10, size_t(2) << 20, size_t(64) << 20})
    for (int c : {1, 2}) cma(b, c);
  line_pingpong("spin", false);
  line_pingpong("futex", true);
  futex_wake(false);
  futex_wake(true);
  line_pingpong("yield", true);
  for (const char* kind : {"tcp", "unix"})
    for (size_t b : {size_t(8), size_t(4096), size_t(32768), size_t(262144), size_t(2097152)})
      for (bool spin : {false, true}) sock_pingpong(kind, b, spin);
  sock_pingpong("tcp", 8, false, true);
  for (const char* kind : {"tcp", "unix"}) {
    for (bool both : {false, true}) {
      for (int k : {1, 2, 4}) sock_stream(kind, k, both, 0, 256 << 10);
      sock_stream(kind, 1, both, 0, 64 << 10);
      sock_stream(kind, 1, both, 0, 1 << 20);
      if (!strcmp(kind, "tcp")) sock_stream(kind, 1, both, 2 << 20, 256 << 10);
      if (!strcmp(kind, "tcp")) sock_stream(kind, 1, both, 256 << 10, 256 << 10);
    }
  }
  return 0;
}
