// ceilings_common.h - memory, processes and output for ceilings.cpp.
#pragma once
#include <sys/wait.h>

#include "bench_common.h"

using bench::now_us;

static double g_scale = 1;  // --quick shrinks the repetitions

template <class T>
T* shared(size_t n) {
  void* p = mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return (T*)p;
}

static char* priv(size_t n, bool thp) {
  size_t a = 2u << 20;
  char* p = (char*)mmap(nullptr, n + a, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  p = (char*)(((uintptr_t)p + a - 1) & ~(a - 1));
  madvise(p, n, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  memset(p, 1, n);
  return p;
}

static void report(const char* name, const std::string& par, const char* unit, std::vector<double> v, bool big) {
  std::sort(v.begin(), v.end());
  double best = big ? v.back() : v.front(), worst = big ? v.front() : v.back();
  printf("CEIL\t%s\t%s\t%s\t%.4g\t%.4g\t%.4g\t%zu\n", name, par.c_str(), unit, best, v[v.size() / 2], worst, v.size());
  fflush(stdout);
}

struct Spin {  // barrier of n processes; yields when they share a core
  alignas(64) std::atomic<int> in;
  alignas(64) std::atomic<int> gen;
  void wait(int n, bool yield = false) {
    int g = gen.load(std::memory_order_acquire);
    if (in.fetch_add(1, std::memory_order_acq_rel) + 1 == n) {
      in.store(0, std::memory_order_relaxed);
      gen.store(g + 1, std::memory_order_release);
    } else {
      while (gen.load(std::memory_order_acquire) == g) yield ? (void)sched_yield() : bench::cpu_relax();
    }
  }
};

// Runs fn(rank) in n pinned processes.
static void procs(int n, const std::function<void(int)>& fn, bool same_core = false) {
  std::vector<pid_t> k;
  fflush(stdout);
  for (int r = 0; r < n; r++) {
    pid_t p = fork();
    if (!p) {
      bench::pin_to(same_core ? 0 : r % bench::ncpu());
      fn(r);
      fflush(stdout);
      _exit(0);
    }
    k.push_back(p);
  }
  for (pid_t p : k) waitpid(p, nullptr, 0);
}

static std::string hum(size_t b) {
  char s[32];
  if (b >= (1u << 20)) snprintf(s, sizeof s, "%zuMiB", b >> 20);
  else if (b >= 1024) snprintf(s, sizeof s, "%zuKiB", b >> 10);
  else snprintf(s, sizeof s, "%zuB", b);
  return s;
}
