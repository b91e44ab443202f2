// gloo_bench.cpp - gloo over TCP (the only usable transport in Debian's build:
// no libuv, ibverbs without hardware) under the common driver.
//
//   --ranks N          forks N processes, FileStore rendezvous
//   --mode async       gloo's default: a device thread polls the sockets with
//                      epoll, callers sleep on condition variables
//   --mode sync        pair->setSync(true, false): the caller does blocking I/O
//   --mode busypoll    pair->setSync(true, true): the caller spins on recv
//   --host A           address to bind (127.0.0.1)
//
// In the sync modes send() blocks in writev until the kernel has taken all of
// it, so two ranks that send to each other first deadlock once a message is
// larger than the socket buffers (seen at 16 MiB, allreduce ring: both time
// out). Symmetric operations therefore stop at 2 MiB there.
// Only the classic algorithm classes (allreduce_ring, ...) work in sync modes;
// the options API (gloo::allreduce(opts), ...) needs async.
#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>

#include "bench_common.h"

using bench::OpImpl;
using bench::RunFn;
using Ctx = std::shared_ptr<gloo::rendezvous::Context>;

// Keeps a classic algorithm object alive inside the closure that runs it.
template <class A, class... Args>
RunFn classic(Args&&... args) {
  auto a = std::make_shared<A>(std::forward<Args>(args)...);
  return [a](int) { a->run(); };
}

// Buffers and the context they belong to, released in the right order.
template <class B>
struct Held {
  std::shared_ptr<gloo::Context> c;
  std::unique_ptr<B> s, r;
  Held(std::shared_ptr<gloo::Context> c, std::unique_ptr<B> s, std::unique_ptr<B> r)
      : c(std::move(c)), s(std::move(s)), r(std::move(r)) {}
};

// fresh(): a newly connected context. Every point gets its own, because the
// classic algorithms leave SO_SNDBUF of a pair at the size of the last buffer
// created, which would disturb the points after it.
static std::vector<OpImpl> make_ops(int rank, int size, std::function<Ctx()> fresh, bool async) {
  const int next = (rank + 1) % size, prev = (rank + size - 1) % size;
  auto tag = std::make_shared<uint32_t>(0);
  std::vector<OpImpl> v;

  if (async) {
    using Alg = gloo::AllreduceOptions::Algorithm;
    auto allreduce = [=](Alg alg, bool ip) {
      return [=](float* in, float* out, size_t n) -> RunFn {
        Ctx ctx = fresh();
        return [=](int) {
          gloo::AllreduceOptions o(ctx);
          o.setAlgorithm(alg);
          if (!ip) o.setInput(in, n);
          o.setOutput(ip ? in : out, n);
          o.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
          o.setTag((*tag)++);
          gloo::allreduce(o);
        };
      };
    };
    v.push_back({"allreduce", "new-ring", allreduce(Alg::RING, false)});
    v.push_back({"allreduce_ip", "new-ring", allreduce(Alg::RING, true)});
    v.push_back({"allreduce_ip", "new-bcube", allreduce(Alg::BCUBE, true)});
    v.push_back({"bcast", "new",
                 [=](float* in, float*, size_t n) -> RunFn {
                   Ctx ctx = fresh();
                   return [=](int it) {
                     gloo::BroadcastOptions o(ctx);
                     o.setOutput(in, n);
                     o.setRoot(it % size);
                     o.setTag((*tag)++);
                     gloo::broadcast(o);
                   };
                 },
                 true});
    v.push_back({"allgather", "new", [=](float* in, float* out, size_t n) -> RunFn {
                   Ctx ctx = fresh();
                   return [=](int) {
                     gloo::AllgatherOptions o(ctx);
                     o.setInput(in, n);
                     o.setOutput(out, n * size);
                     o.setTag((*tag)++);
                     gloo::allgather(o);
                   };
                 }});
    v.push_back({"alltoall", "new", [=](float* in, float* out, size_t n) -> RunFn {
                   Ctx ctx = fresh();
                   return [=](int) {
                     gloo::AlltoallOptions o(ctx);
                     o.setInput(in, n * size);
                     o.setOutput(out, n * size);
                     o.setTag((*tag)++);
                     gloo::alltoall(o);
                   };
                 }});
    v.push_back({"sendrecv", "unbound", [=](float* in, float* out, size_t n) -> RunFn {
                   Ctx ctx = fresh();
                   auto h = std::make_shared<Held<gloo::transport::UnboundBuffer>>(
                       ctx, ctx->createUnboundBuffer(in, n * 4), ctx->createUnboundBuffer(out, n * 4));
                   return [=](int) {
                     uint64_t slot = 1000000007ull;
                     h->r->recv(prev, slot);
                     h->s->send(next, slot);
                     h->r->waitRecv();
                     h->s->waitSend();
                   };
                 }});
    v.push_back({"pingpong", "unbound", [=](float* in, float* out, size_t n) -> RunFn {
                   Ctx ctx = fresh();
                   auto h = std::make_shared<Held<gloo::transport::UnboundBuffer>>(
                       ctx, ctx->createUnboundBuffer(in, n * 4), ctx->createUnboundBuffer(out, n * 4));
                   return [=](int) {
                     uint64_t slot = 1000000009ull;
                     if (rank == 0) {
                       h->s->send(1, slot);
                       h->r->recv(1, slot);
                       h->r->waitRecv();
                       h->s->waitSend();
                     } else {
                       h->r->recv(0, slot);
                       h->r->waitRecv();
                       h->s->send(0, slot);
                       h->s->waitSend();
                     }
                   };
                 }});
    v.push_back({"barrier", "new", [=](float*, float*, size_t) -> RunFn {
                   Ctx ctx = fresh();
                   return [=](int) {
                     gloo::BarrierOptions o(ctx);
                     o.setTag((*tag)++);
                     gloo::barrier(o);
                   };
                 }});
  }

  using C = std::shared_ptr<gloo::Context>;
  using P = std::vector<float*>;
  v.push_back({"allreduce_ip", "ring", [=](float* in, float*, size_t n) {
                 C c = fresh();
                 return classic<gloo::AllreduceRing<float>>(c, P{in}, (int)n);
               }});
  v.push_back({"allreduce_ip", "ring_chunked", [=](float* in, float*, size_t n) {
                 C c = fresh();
                 return classic<gloo::AllreduceRingChunked<float>>(c, P{in}, (int)n);
               }});
  v.push_back({"allreduce_ip", "halving_doubling", [=](float* in, float*, size_t n) {
                 C c = fresh();
                 return classic<gloo::AllreduceHalvingDoubling<float>>(c, P{in}, (int)n);
               }});
  v.push_back({"allreduce_ip", "bcube", [=](float* in, float*, size_t n) {
                 C c = fresh();
                 return classic<gloo::AllreduceBcube<float>>(c, P{in}, (int)n);
               }});
  v.push_back({"bcast", "one_to_all",
               [=](float* in, float*, size_t n) -> RunFn {
                 C c = fresh();
                 std::vector<RunFn> per_root;
                 for (int r = 0; r < size; r++)
                   per_root.push_back(classic<gloo::BroadcastOneToAll<float>>(c, P{in}, n, r));
                 return [=](int it) { per_root[it % size](it); };
               },
               true});
  v.push_back({"allgather", "ring", [=](float* in, float* out, size_t n) {
                 C c = fresh();
                 return classic<gloo::AllgatherRing<float>>(c, std::vector<const float*>{in}, out, (int)n);
               }});
  v.push_back({"reduce_scatter", "halving_doubling",
               [=](float* in, float*, size_t n) {
                 C c = fresh();
                 return classic<gloo::ReduceScatterHalvingDoubling<float>>(c, P{in}, (int)(n * size),
                                                                           std::vector<int>(size, (int)n));
               },
               true});
  v.push_back({"pingpong", "bound", [=](float* in, float* out, size_t n) -> RunFn {
                 C c = fresh();
                 int slot = c->nextSlot();
                 auto& pair = c->getPair(1 - rank);
                 auto h = std::make_shared<Held<gloo::transport::Buffer>>(c, pair->createSendBuffer(slot, in, n * 4),
                                                                          pair->createRecvBuffer(slot, out, n * 4));
                 return [=](int) {
                   if (rank == 0) {
                     h->s->send();
                     h->r->waitRecv();
                     h->s->waitSend();
                   } else {
                     h->r->waitRecv();
                     h->s->send();
                     h->s->waitSend();
                   }
                 };
               }});
  v.push_back({"barrier", "all_to_all", [=](float*, float*, size_t) {
                 C c = fresh();
                 return classic<gloo::BarrierAllToAll>(c);
               }});
  if (!async)
    for (auto& im : v)
      if (im.op != "bcast" && im.op != "pingpong") im.max_bytes = 2 << 20;
  return v;
}

int main(int argc, char** argv) {
  bench::Opts o = bench::parse(argc, argv);
  std::string mode = "async", host = "127.0.0.1", dir = "gloo_store";
  for (size_t i = 0; i + 1 < o.rest.size(); i++) {
    if (o.rest[i] == "--mode") mode = o.rest[i + 1];
    if (o.rest[i] == "--host") host = o.rest[i + 1];
    if (o.rest[i] == "--store") dir = o.rest[i + 1];
  }
  mkdir(dir.c_str(), 0700);
  std::vector<pid_t> kids;
  for (int rank = 0; rank < o.ranks; rank++) {
    pid_t p = fork();
    if (p) {
      kids.push_back(p);
      continue;
    }
    int rc = 0;
    try {
      if (o.pin == 1) bench::pin_to(rank % bench::ncpu());  // before the device thread: it inherits the cpu
      gloo::transport::tcp::attr a;
      a.hostname = host;
      auto dev = gloo::transport::tcp::CreateDevice(a);
      gloo::rendezvous::FileStore store(dir);
      int serial = 0;
      auto fresh = [&]() {
        gloo::rendezvous::PrefixStore ps(std::to_string(serial++), store);
        auto ctx = std::make_shared<gloo::rendezvous::Context>(rank, o.ranks);
        ctx->setTimeout(std::chrono::seconds(120));
        ctx->connectFullMesh(ps, dev);
        if (mode != "async")
          for (int i = 0; i < o.ranks; i++)
            if (i != rank) ctx->getPair(i)->setSync(true, mode == "busypoll");
        return ctx;
      };
      bench::Driver d(o, rank, o.ranks);
      if (mode != "busypoll") d.set_polite();
      d.run(make_ops(rank, o.ranks, fresh, mode == "async"));
      d.barrier();
    } catch (const std::exception& e) {
      fprintf(stderr, "gloo rank %d: %s\n", rank, e.what());
      rc = 1;
    }
    fflush(stdout);
    _exit(rc);
  }
  int rc = 0;
  for (pid_t p : kids) {
    int st;
    waitpid(p, &st, 0);
    if (st) rc = 1;
  }
  return rc;
}
