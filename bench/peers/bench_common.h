// bench_common.h - library-neutral driver shared by every *_bench.cpp here.
//
// A bench program supplies, for its library, a list of OpImpl (one per
// operation and algorithm). The driver allocates buffers, checks results,
// picks iteration counts, times, and prints one TSV line per point:
//
//   ROW lib transport variant op ranks bytes actual_bytes median_us min_us
//       p10_us p90_us samples batch ok
//
// Timing method (identical for all libraries):
//  * All ranks are processes of one machine. They share a control segment
//    (file named by $BENCH_CTL) that holds a barrier and the time stamps, so
//    neither needs the library under test, and CLOCK_MONOTONIC stamps of
//    different ranks can be compared.
//  * A sample is: control barrier, `batch` operations back to back, stop.
//    Its time is (last rank out - first rank in) / batch. The batch is chosen
//    so that a sample lasts about --batch-us. Reported: median, min, p10, p90
//    of the samples.
//  * bcast rotates its root (iteration % ranks), so that a root cannot run
//    ahead of its receivers through a batch and fake a lower latency.
//  * pingpong is half the round trip between rank 0 and rank 1 (2 ranks only).
//
// Sizes follow nccl-tests: `bytes` is the buffer of one rank for allreduce,
// bcast, sendrecv, pingpong; the gathered output for allgather; the whole
// input of one rank for reduce_scatter and alltoall. At sizes too small to
// split, every rank keeps one float (actual_bytes says what moved).
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace bench {

constexpr int kMaxRanks = 16;
constexpr int kMaxSamples = 4096;

inline double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

inline void cpu_relax() {
#if defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

inline int ncpu() {
  static const int n = (int)sysconf(_SC_NPROCESSORS_ONLN);  // reads /sys: once
  return n;
}

inline void pin_to(int cpu) {
  cpu_set_t s;
  CPU_ZERO(&s);
  CPU_SET(cpu, &s);
  sched_setaffinity(0, sizeof s, &s);
}

struct Opts {
  std::string lib = "?", transport = "?", variant;
  std::string ops = "all";    // comma list, or all
  std::vector<size_t> sizes;  // bytes
  double budget_ms = 250;     // measuring time per point
  double batch_us = 0;        // 0: 200 us, or 5 ms when ranks > cores
  int min_samples = 5;
  int max_samples = 1000;
  int pin = 1;  // rank r on cpu r % ncpu
  int thp = 0;  // madvise(MADV_HUGEPAGE) on the buffers
  int check = 1;
  int ranks = 2;  // only for programs that fork their own ranks
  std::vector<std::string> rest;
};

inline Opts parse(int argc, char** argv) {
  Opts o;
  size_t mn = 8, mx = 256u << 20, f = 8;
  auto num = [](const char* s) -> size_t {
    char* e;
    double v = strtod(s, &e);
    if (*e == 'K' || *e == 'k') v *= 1024;
    if (*e == 'M' || *e == 'm') v *= 1 << 20;
    if (*e == 'G' || *e == 'g') v *= 1 << 30;
    return (size_t)v;
  };
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    const char* v = i + 1 < argc ? argv[i + 1] : "";
    if (a == "--lib") o.lib = v, i++;
    else if (a == "--transport") o.transport = v, i++;
    else if (a == "--variant") o.variant = v, i++;
    else if (a == "--ops") o.ops = v, i++;
    else if (a == "--min") mn = num(v), i++;
    else if (a == "--max") mx = num(v), i++;
    else if (a == "--factor") f = num(v), i++;
    else if (a == "--sizes") {
      for (const char* at = v; *at; at += *at == ',') {
        const char* end = at + strcspn(at, ",");
        o.sizes.push_back(num(std::string(at, end).c_str()));
        at = end;
      }
      i++;
    } else if (a == "--budget-ms") o.budget_ms = atof(v), i++;
    else if (a == "--batch-us") o.batch_us = atof(v), i++;
    else if (a == "--min-samples") o.min_samples = atoi(v), i++;
    else if (a == "--max-samples") o.max_samples = std::min(atoi(v), kMaxSamples), i++;
    else if (a == "--pin") o.pin = atoi(v), i++;
    else if (a == "--thp") o.thp = atoi(v), i++;
    else if (a == "--check") o.check = atoi(v), i++;
    else if (a == "--ranks") o.ranks = atoi(v), i++;
    else o.rest.push_back(a);
  }
  if (!o.sizes.empty()) return o;
  for (size_t s = mn; s <= mx; s *= f) o.sizes.push_back(s);
  if (o.sizes.empty() || o.sizes.back() != mx) o.sizes.push_back(mx);
  return o;
}

struct Ctl {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> gen;
  alignas(64) std::atomic<uint32_t> batch;
  std::atomic<uint32_t> samples;
  std::atomic<uint32_t> stop;  // sample at which to give up, or 0
  std::atomic<uint32_t> errors;
  alignas(64) double stamp[kMaxRanks][kMaxSamples][2];
};

inline Ctl* map_ctl(const char* path = nullptr) {
  if (!path) path = getenv("BENCH_CTL");
  if (!path) {
    fprintf(stderr, "BENCH_CTL is not set\n");
    exit(2);
  }
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Ctl))) {
    perror(path);
    exit(2);
  }
  void* p = mmap(nullptr, sizeof(Ctl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(2);
  }
  close(fd);
  return (Ctl*)p;
}

using RunFn = std::function<void(int iter)>;  // performs one operation

struct OpImpl {
  std::string op;    // allreduce bcast allgather reduce_scatter alltoall
                     // sendrecv pingpong barrier; suffix "_ip": in place
  std::string algo;  // appended to the variant column
  // in/out: this rank's buffers. n: floats per rank as passed to the library
  // (allgather: floats contributed; reduce_scatter: floats received;
  // alltoall: floats per peer; else: floats in the buffer).
  // Collective: called by all ranks at the same point.
  std::function<RunFn(float* in, float* out, size_t n)> make;
  bool result_in_in = false;  // result is left in `in` (in-place algorithms)
  size_t max_bytes = (size_t)-1;
};

class Driver {
 public:
  Driver(const Opts& o, int rank, int size) : o_(o), rank_(rank), n_(size) {
    ctl_ = map_ctl();
    oversub_ = size > ncpu();
    if (o_.pin) pin_to(rank % ncpu());
    if (o_.batch_us <= 0) o_.batch_us = oversub_ ? 5000 : 200;
  }
  // Where buffers come from; set it for a library with registered memory.
  std::function<float*(size_t)> alloc;
  std::function<void(float*, size_t)> release;
  // Called while waiting in the control barrier (MPI needs it for progress).
  std::function<void()> progress;
  // Set for a library with threads of its own: a rank waiting in the control
  // barrier then sleeps instead of keeping those threads off its core. (With
  // spinning, or sched_yield, a straggling gloo thread waits 4 ms, a whole
  // scheduler slice, for the core.)
  void set_polite() {
    polite_ = true;
    if (o_.batch_us < 2000) o_.batch_us = 2000;
  }

  void barrier() {
    uint32_t g = ctl_->gen.load(std::memory_order_acquire);
    if (ctl_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == (uint32_t)n_) {
      ctl_->arrived.store(0, std::memory_order_relaxed);
      ctl_->gen.store(g + 1, std::memory_order_release);
      if (polite_) syscall(SYS_futex, &ctl_->gen, FUTEX_WAKE, n_, nullptr, nullptr, 0);
      return;
    }
    while (ctl_->gen.load(std::memory_order_acquire) == g) {
      if (progress) progress();
      if (polite_) syscall(SYS_futex, &ctl_->gen, FUTEX_WAIT, g, nullptr, nullptr, 0);
      else if (oversub_) sched_yield();
      else cpu_relax();
    }
  }

  void run(std::vector<OpImpl> impls) {
    for (auto& im : impls) {
      if (!wanted(im)) continue;
      if (im.op == "pingpong" && n_ != 2) continue;
      if (im.op == "barrier") {
        point(im, 0);
        continue;
      }
      for (size_t s : o_.sizes)
        if (s <= im.max_bytes) point(im, s);
    }
  }

 private:
  static bool in_list(const std::string& list, const std::string& x) {
    return ("," + list + ",").find("," + x + ",") != std::string::npos;
  }
  bool wanted(const OpImpl& im) const {
    return o_.ops == "all" || in_list(o_.ops, im.op) || in_list(o_.ops, im.op + ":" + im.algo);
  }
  float* get(size_t bytes) {
    if (alloc) return alloc(bytes);
    bytes = (bytes + 4095) & ~size_t(4095);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      perror("mmap buffer");
      exit(2);
    }
    if (o_.thp) madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return (float*)p;
  }
  void put(float* p, size_t bytes) {
    if (release) {
      release(p, bytes);
      return;
    }
    if (!alloc) munmap(p, (bytes + 4095) & ~size_t(4095));
  }
  // Small integers: every sum is exact in float32, in any order.
  static float val(int rank, size_t i) { return (float)((i * 3 + (size_t)rank * 5 + 1) & 15); }

  // One timed batch; stores this rank's stamps. False: rank 0 called it off.
  bool sample(const RunFn& f, uint32_t k, int slot, int& iter) {
    barrier();
    if (slot > 0 && ctl_->stop == (uint32_t)slot) return false;
    double a = now_us();
    for (uint32_t i = 0; i < k; i++) f(iter++);
    double b = now_us();
    ctl_->stamp[rank_][slot][0] = a;
    ctl_->stamp[rank_][slot][1] = b;
    return true;
  }
  double span(int slot) const {
    double a = 1e300, b = 0;
    for (int r = 0; r < n_; r++) {
      a = std::min(a, ctl_->stamp[r][slot][0]);
      b = std::max(b, ctl_->stamp[r][slot][1]);
    }
    return b - a;
  }

  void point(OpImpl& im, size_t bytes) {
    std::string op = im.op;
    if (op.size() > 3 && op.substr(op.size() - 3) == "_ip") op.resize(op.size() - 3);
    const bool ip = op != im.op || im.result_in_in;
    size_t total = std::max<size_t>(1, bytes / 4);  // floats, nccl-tests size
    size_t n = total, nin = total, nout = total;
    if (op == "allgather" || op == "reduce_scatter" || op == "alltoall") {
      n = std::max<size_t>(1, total / n_);
      total = n * n_;
      nin = nout = total;
      if (op == "allgather") nin = n;
      if (op == "reduce_scatter") nout = n;
    }
    if (op == "barrier") n = total = nin = nout = 1;
    size_t inb = nin * 4, outb = nout * 4;
    float* in = get(inb);
    float* out = ip ? in : get(outb);
    float* res = ip ? in : out;
    for (size_t i = 0; i < nin; i++) in[i] = val(rank_, i);
    RunFn f = im.make(in, out, n);
    int iter = 0;
    barrier();
    f(iter++);
    barrier();
    if (o_.check) check(op, res, n, total);
    barrier();

    // Choose batch and sample count; rank 0 decides for all. Also warms up.
    uint32_t k = 1;
    for (int round = 0; round < 3; round++) {
      sample(f, k, 0, iter);
      barrier();
      if (rank_ == 0) {
        double est = std::max(span(0) / k, 0.01);
        double nk = std::min(o_.batch_us / est, 64.0 * k);  // grow gently
        nk = std::max(1.0, std::min(20000.0, nk));
        double ns = o_.budget_ms * 1e3 / (est * nk);
        ctl_->batch = (uint32_t)nk;
        ctl_->samples = (uint32_t)std::max<double>(o_.min_samples, std::min<double>(o_.max_samples, ns));
      }
      barrier();
      const uint32_t before = k;
      k = ctl_->batch;
      if (k == 1 && before == 1) break;  // a long operation: no batch will grow, and it is warm
    }
    // A point that turns out slower than calibrated (stalls) is cut short:
    // rank 0 says so before it enters the barrier of the next sample.
    int ns = (int)ctl_->samples;
    if (rank_ == 0) ctl_->stop = 0;
    const double begin = now_us();
    for (int i = 0; i < ns; i++) {
      if (rank_ == 0 && i >= o_.min_samples && now_us() - begin > 4e3 * o_.budget_ms) ctl_->stop = i;
      if (!sample(f, k, i, iter)) ns = i;
    }
    barrier();
    if (rank_ == 0) {
      std::vector<double> t(ns);
      for (int i = 0; i < ns; i++) t[i] = span(i) / k / (op == "pingpong" ? 2 : 1);
      std::sort(t.begin(), t.end());
      auto q = [&](double p) { return t[std::min<size_t>(ns - 1, (size_t)(p * ns))]; };
      std::string var = o_.variant;
      if (!im.algo.empty()) var += (var.empty() ? "" : "/") + im.algo;
      if (var.empty()) var = "-";
      printf("ROW\t%s\t%s\t%s\t%s\t%d\t%zu\t%zu\t%.4f\t%.4f\t%.4f\t%.4f\t%d\t%u\t%s\n", o_.lib.c_str(),
             o_.transport.c_str(), var.c_str(), im.op.c_str(), n_, bytes, total * 4, q(0.5), t[0], q(0.1), q(0.9), ns,
             k, ctl_->errors.load() ? "WRONG" : "ok");
      fflush(stdout);
      ctl_->errors = 0;
    }
    f = nullptr;
    barrier();
    if (!ip) put(out, outb);
    put(in, inb);
    barrier();
  }

  // Verifies the first operation after the buffers were filled (iteration 0,
  // so the bcast root is rank 0). n, total: as in point().
  void check(const std::string& op, const float* res, size_t n, size_t total) {
    size_t bad = 0, first = 0;
    auto expect = [&](size_t i, float want) {
      if (res[i] != want && bad++ == 0) first = i;
    };
    auto sum = [&](size_t i) {
      float s = 0;
      for (int r = 0; r < n_; r++) s += val(r, i);
      return s;
    };
    const int prev = (rank_ + n_ - 1) % n_;
    if (op == "allreduce")
      for (size_t i = 0; i < total; i++) expect(i, sum(i));
    else if (op == "bcast")
      for (size_t i = 0; i < total; i++) expect(i, val(0, i));
    else if (op == "allgather")
      for (int r = 0; r < n_; r++)
        for (size_t i = 0; i < n; i++) expect(r * n + i, val(r, i));
    else if (op == "reduce_scatter")
      for (size_t i = 0; i < n; i++) expect(i, sum(rank_ * n + i));
    else if (op == "alltoall")
      for (int r = 0; r < n_; r++)
        for (size_t i = 0; i < n; i++) expect(r * n + i, val(r, rank_ * n + i));
    else if (op == "sendrecv" || op == "pingpong")
      for (size_t i = 0; i < total; i++) expect(i, val(prev, i));
    if (bad) {
      ctl_->errors++;
      fprintf(stderr, "WRONG rank %d %s: %zu elements, first at %zu = %g\n", rank_, op.c_str(), bad, first, res[first]);
    }
  }

  Opts o_;
  int rank_, n_;
  bool oversub_, polite_ = false;
  Ctl* ctl_;
};

}  // namespace bench
