// The same collective between eight ranks, on cpu devices and on simulated GPUs: the results have the same bits, and
// the simulation gives the time on the links of these GPUs.
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr int kRanks = 8;
constexpr std::size_t kFloats = 1 << 20;

// Returns the sums on rank 0. One thread makes the calls of all ranks: a call returns at once and waits for no other
// rank.
std::vector<float> sums_on(const std::string& name) {
  const std::vector<slip::Device> devices = slip::Device::open_all(name, kRanks);
  std::vector<slip::Communicator> comms = slip::Communicator::init_all(devices);
  std::vector<slip::Stream> streams;
  std::vector<slip::Buffer> data;
  for (int rank = 0; rank < kRanks; ++rank) {
    streams.push_back(devices[rank].stream());
    slip::Buffer host = devices[rank].alloc(kFloats * sizeof(float), slip::MemoryKind::kPinned);
    for (std::size_t i = 0; i < kFloats; ++i) host.host_write<float>()[i] = 0.1F * static_cast<float>(rank + i % 7);
    data.push_back(devices[rank].alloc(kFloats * sizeof(float)));
    streams[rank].copy(data[rank], host);
    streams[rank].sync();
  }

  const slip::Picos begun = devices[0].now();
  for (int rank = 0; rank < kRanks; ++rank)
    comms[rank].all_reduce(data[rank], data[rank], slip::DataType::kF32, slip::ReduceOp::kSum, streams[rank]);
  for (const slip::Stream& stream : streams) stream.sync();
  std::printf("%s: %zu floats of %d ranks in %.1f us\n", name.c_str(), kFloats, kRanks,
              static_cast<double>(devices[0].now() - begun) / 1e6);

  slip::Buffer host = devices[0].alloc(kFloats * sizeof(float), slip::MemoryKind::kPinned);
  streams[0].copy(host, data[0]);
  streams[0].sync();
  const slip::HostView<const float> view = host.host_read<float>();
  return {view.begin(), view.end()};
}

}  // namespace

int main() try {
  const std::vector<float> cpu = sums_on("cpu"), sim = sums_on("sim:h200");
  const bool same = std::memcmp(cpu.data(), sim.data(), cpu.size() * sizeof(float)) == 0;
  std::printf("the bits of the results are %s\n", same ? "equal" : "different");
  return same ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
