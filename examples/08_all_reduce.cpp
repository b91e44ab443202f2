// Ranks sum their arrays. Without a launcher there is one rank. With four ranks:  slip launch -n 4 -- ./08_all_reduce
#include <cstdio>
#include <exception>

#include "slip/slip.hpp"

int main() try {
  const slip::Device device = slip::Device::open("cpu");
  slip::Communicator comm = slip::Communicator::init(device);
  const slip::Stream stream = device.stream();

  const std::size_t n = 1 << 20;
  slip::Buffer gradients = device.alloc(n * sizeof(float), slip::MemoryKind::kPinned, "gradients");
  for (float& one : gradients.host_write<float>()) one = static_cast<float>(comm.rank() + 1);

  comm.all_reduce(gradients, gradients, slip::DataType::kF32, slip::ReduceOp::kSum, stream);  // returns at once
  stream.sync();

  const float sum = gradients.host_read<float>()[n - 1];
  std::printf("rank %d of %d: %zu floats, each is %g now\n", comm.rank(), comm.nranks(), n, sum);
  return sum == static_cast<float>(comm.nranks() * (comm.nranks() + 1)) / 2 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
