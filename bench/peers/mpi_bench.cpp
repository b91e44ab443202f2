// mpi_bench.cpp - MPI collectives (Open MPI or MPICH) under the common driver.
// Build with mpicxx.openmpi / mpicxx.mpich; run.sh does both.
#include <mpi.h>

#include "bench_common.h"

using bench::OpImpl;
using bench::RunFn;

#define CK(x)                                 \
  do {                                        \
    if ((x) != MPI_SUCCESS) {                 \
      fprintf(stderr, "MPI error: %s\n", #x); \
      MPI_Abort(MPI_COMM_WORLD, 1);           \
    }                                         \
  } while (0)

// The same sum as MPI_SUM, but compiled here, hence vectorised: Debian's Open MPI
// and MPICH both add one float at a time. Shows what their protocols could do.
static void vec_sum(void* a_, void* b_, int* n, MPI_Datatype*) {
  const float* __restrict a = (const float*)a_;
  float* __restrict b = (float*)b_;
  for (int i = 0, m = *n; i < m; i++) b[i] += a[i];
}

int main(int argc, char** argv) {
  bench::Opts o = bench::parse(argc, argv);
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm W = MPI_COMM_WORLD;
  bench::Driver d(o, rank, size);
  d.progress = [] {
    int flag;
    MPI_Iprobe(MPI_ANY_SOURCE, 0x7ff0, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  };
  const int next = (rank + 1) % size, prev = (rank + size - 1) % size;

  MPI_Op vec;
  MPI_Op_create(vec_sum, 1, &vec);

  std::vector<OpImpl> ops;
  ops.push_back({"allreduce", "vec", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Allreduce(in, out, (int)n, MPI_FLOAT, vec, W)); };
                 }});
  ops.push_back({"allreduce_ip", "vec", [&](float* in, float*, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Allreduce(MPI_IN_PLACE, in, (int)n, MPI_FLOAT, vec, W)); };
                 }});
  ops.push_back({"reduce_scatter", "vec", [&](float* in, float* out, size_t n) -> RunFn {
                   std::vector<int> counts(size, (int)n);
                   return [=](int) { CK(MPI_Reduce_scatter(in, out, counts.data(), MPI_FLOAT, vec, W)); };
                 }});
  ops.push_back({"reduce_scatter", "vec/block", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Reduce_scatter_block(in, out, (int)n, MPI_FLOAT, vec, W)); };
                 }});
  ops.push_back({"allreduce", "", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Allreduce(in, out, (int)n, MPI_FLOAT, MPI_SUM, W)); };
                 }});
  ops.push_back({"allreduce_ip", "", [&](float* in, float*, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Allreduce(MPI_IN_PLACE, in, (int)n, MPI_FLOAT, MPI_SUM, W)); };
                 }});
  ops.push_back({"bcast", "",
                 [&](float* in, float*, size_t n) -> RunFn {
                   return [=](int it) { CK(MPI_Bcast(in, (int)n, MPI_FLOAT, it % size, W)); };
                 },
                 true});
  ops.push_back({"allgather", "", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Allgather(in, (int)n, MPI_FLOAT, out, (int)n, MPI_FLOAT, W)); };
                 }});
  ops.push_back({"reduce_scatter", "", [&](float* in, float* out, size_t n) -> RunFn {
                   std::vector<int> counts(size, (int)n);
                   return [=](int) { CK(MPI_Reduce_scatter(in, out, counts.data(), MPI_FLOAT, MPI_SUM, W)); };
                 }});
  ops.push_back({"reduce_scatter", "block", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Reduce_scatter_block(in, out, (int)n, MPI_FLOAT, MPI_SUM, W)); };
                 }});
  ops.push_back({"alltoall", "", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) { CK(MPI_Alltoall(in, (int)n, MPI_FLOAT, out, (int)n, MPI_FLOAT, W)); };
                 }});
  ops.push_back(
      {"sendrecv", "", [&](float* in, float* out, size_t n) -> RunFn {
         return [=](int) {
           CK(MPI_Sendrecv(in, (int)n, MPI_FLOAT, next, 7, out, (int)n, MPI_FLOAT, prev, 7, W, MPI_STATUS_IGNORE));
         };
       }});
  ops.push_back({"pingpong", "", [&](float* in, float* out, size_t n) -> RunFn {
                   return [=](int) {
                     if (rank == 0) {
                       CK(MPI_Send(in, (int)n, MPI_FLOAT, 1, 9, W));
                       CK(MPI_Recv(out, (int)n, MPI_FLOAT, 1, 9, W, MPI_STATUS_IGNORE));
                     } else {
                       CK(MPI_Recv(out, (int)n, MPI_FLOAT, 0, 9, W, MPI_STATUS_IGNORE));
                       CK(MPI_Send(in, (int)n, MPI_FLOAT, 0, 9, W));
                     }
                   };
                 }});
  ops.push_back({"barrier", "", [&](float*, float*, size_t) -> RunFn { return [=](int) { CK(MPI_Barrier(W)); }; }});
  d.run(ops);
  MPI_Finalize();
  return 0;
}
