// slip_bench.cpp - Slipstream under the common driver: ranks are processes, each operation is enqueued on a stream and
// waited for. Buffers are private; with --registered they are Communicator::allocate's.
#include <sys/wait.h>

#include <map>
#include <memory>

#include "bench_common.h"
#include "slip/slip.hpp"

using bench::OpImpl;
using bench::RunFn;

namespace {

std::vector<OpImpl> operations(slip::Communicator& comm, const slip::Device& device, const slip::Stream& stream) {
  using Buffer = std::shared_ptr<slip::Buffer>;
  const auto wrap = [&device](float* data, std::size_t floats) {
    return Buffer(new slip::Buffer(
        device.wrap(data, std::max<std::size_t>(floats, 1) * sizeof(float), slip::MemoryKind::kPinned)));
  };
  const auto ranks = static_cast<std::size_t>(comm.nranks());
  constexpr slip::DataType kType = slip::DataType::kF32;
  constexpr slip::ReduceOp kSum = slip::ReduceOp::kSum;
  std::vector<OpImpl> ops;
  ops.push_back({"allreduce", "", [&, wrap](float* in, float* out, std::size_t n) -> RunFn {
                   return [&, from = wrap(in, n), to = wrap(out, n)](int) {
                     comm.all_reduce(*to, *from, kType, kSum, stream);
                     stream.sync();
                   };
                 }});
  ops.push_back({"allreduce_ip", "", [&, wrap](float* in, float*, std::size_t n) -> RunFn {
                   return [&, both = wrap(in, n)](int) {
                     comm.all_reduce(*both, *both, kType, kSum, stream);
                     stream.sync();
                   };
                 }});
  ops.push_back({"bcast", "",
                 [&, wrap, ranks](float* in, float*, std::size_t n) -> RunFn {
                   return [&, ranks, both = wrap(in, n)](int iteration) {
                     comm.broadcast(*both, *both, iteration % static_cast<int>(ranks), stream);
                     stream.sync();
                   };
                 },
                 true});
  ops.push_back({"allgather", "", [&, wrap, ranks](float* in, float* out, std::size_t n) -> RunFn {
                   return [&, from = wrap(in, n), to = wrap(out, n * ranks)](int) {
                     comm.all_gather(*to, *from, stream);
                     stream.sync();
                   };
                 }});
  ops.push_back({"reduce_scatter", "", [&, wrap, ranks](float* in, float* out, std::size_t n) -> RunFn {
                   return [&, from = wrap(in, n * ranks), to = wrap(out, n)](int) {
                     comm.reduce_scatter(*to, *from, kType, kSum, stream);
                     stream.sync();
                   };
                 }});
  ops.push_back({"alltoall", "", [&, wrap, ranks](float* in, float* out, std::size_t n) -> RunFn {
                   return [&, from = wrap(in, n * ranks), to = wrap(out, n * ranks)](int) {
                     comm.all_to_all(*to, *from, stream);
                     stream.sync();
                   };
                 }});
  ops.push_back({"sendrecv", "", [&, wrap](float* in, float* out, std::size_t n) -> RunFn {
                   const int next = (comm.rank() + 1) % comm.nranks();
                   const int before = (comm.rank() + comm.nranks() - 1) % comm.nranks();
                   return [&, next, before, from = wrap(in, n), to = wrap(out, n)](int) {
                     slip::Group group;
                     comm.send(*from, next, stream);
                     comm.recv(*to, before, stream);
                     group.end();
                     stream.sync();
                   };
                 }});
  ops.push_back({"pingpong", "", [&, wrap](float* in, float* out, std::size_t n) -> RunFn {
                   return [&, from = wrap(in, n), to = wrap(out, n)](int) {
                     if (comm.rank() == 0) comm.send(*from, 1, stream);
                     if (comm.rank() < 2) comm.recv(*to, 1 - comm.rank(), stream);
                     if (comm.rank() == 1) comm.send(*from, 0, stream);
                     stream.sync();
                   };
                 }});
  ops.push_back({"barrier", "", [&](float*, float*, std::size_t) -> RunFn {
                   return [&](int) {
                     comm.barrier(stream);
                     stream.sync();
                   };
                 }});
  return ops;
}

int run_rank(const bench::Opts& options, const std::string& name, int rank) {
  bench::Driver driver(options, rank, options.ranks);
  const slip::Device device = slip::Device::open("cpu");
  slip::Communicator comm = slip::Communicator::init(slip::UniqueId::parse(name), options.ranks, rank, device);
  const slip::Stream stream = device.stream();
  std::map<float*, slip::SharedBuffer> shared;
  if (std::find(options.rest.begin(), options.rest.end(), "--registered") != options.rest.end()) {
    driver.alloc = [&](std::size_t bytes) {
      slip::SharedBuffer buffer = comm.allocate(bytes);
      auto* const data = static_cast<float*>(buffer.buffer().native());
      shared[data] = std::move(buffer);
      return data;
    };
    driver.release = [&](float* data, std::size_t) { shared.erase(data); };
  }
  driver.run(operations(comm, device, stream));
  driver.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Opts options = bench::parse(argc, argv);
  const std::string name = "unix:slip-peers-" + std::to_string(getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int status = 1;
    try {
      status = run_rank(options, name, rank);
    } catch (const std::exception& error) {
      fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    fflush(stdout);
    _exit(status);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) failed = 1;
  }
  return failed;
}
