// Communicators on sim devices: the same program as on cpu, with the same bits, in virtual time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "comm/predict.hpp"
#include "comm/rehearsal.hpp"
#include "cpu_ranks.hpp"
#include "slip/check.hpp"
#include "slip/trace.hpp"
#include "support/errors.hpp"

namespace slip {
namespace {

using test::Bytes;
using test::fails;
using test::values;

constexpr double kGbps = 100, kLatencyUs = 2;

// Ports of a switch, and memory that takes no time; a call costs the host nothing.
std::string world(double memory_gbps = 1e6) {
  return fmt::format(
      "sim:{{\"name\": \"rank\", \"memory\": \"80 GB\", \"queues\": 8,"
      " \"compute\": {{\"flops\": \"100 TFLOP/s\", \"bandwidth\": \"{} GB/s\"}},"
      " \"copies\": {{\"in\": \"25 GB/s\", \"out\": \"25 GB/s\", \"latency\": \"1 us\"}},"
      " \"peers\": {{\"form\": \"switch\", \"bandwidth\": \"{} GB/s\", \"latency\": \"{} us\"}}}}",
      memory_gbps, kGbps, kLatencyUs);
}

// All ranks in one thread, each with a device, a stream and a communicator.
struct Ranks {
  Ranks(const std::string& name, int count, const CommunicatorOptions& options = {})
      : devices(Device::open_all(name, count)), comms(Communicator::init_all(devices, options)) {
    for (const Device& device : devices) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  }
  std::size_t size() const { return devices.size(); }
  Buffer upload(std::size_t rank, const Bytes& bytes) const {
    Buffer host = devices[rank].alloc(std::max<std::size_t>(bytes.size(), 1), MemoryKind::kPinned);
    std::copy(bytes.begin(), bytes.end(), host.host_write<std::byte>().begin());
    Buffer there = devices[rank].alloc(std::max<std::size_t>(bytes.size(), 1));
    streams[rank].copy(there, host);
    streams[rank].sync();
    return there;
  }
  Bytes download(std::size_t rank, const Buffer& from, std::size_t bytes) const {
    const Buffer host = devices[rank].alloc(std::max<std::size_t>(bytes, 1), MemoryKind::kPinned);
    if (bytes > 0) streams[rank].copy(host.slice(0, bytes), from.slice(0, bytes));
    streams[rank].sync();
    const HostView<const std::byte> view = host.host_read<std::byte>();
    return {view.begin(), view.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }
  void sync() const {
    for (const Stream& stream : streams) stream.sync();
  }
  // From one instant, at which nothing is under way, until all have done what they were given.
  double us(const std::function<void()>& body) const {
    sync();
    const Picos begun = devices[0].now();
    body();
    sync();
    return static_cast<double>(devices[0].now() - begun) / 1e6;
  }

  std::vector<Device> devices;
  std::vector<Communicator> comms;
  std::vector<Stream> streams;
};

CommunicatorOptions with(Algorithm algorithm, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  CommunicatorOptions options;
  options.algorithm = algorithm;
  options.timeout = timeout;
  return options;
}

// What each rank has after every kind of call, one after the other.
std::vector<Bytes> every_call(Ranks& ranks, std::size_t elements) {
  const std::size_t n = ranks.size(), bytes = elements * 4;
  std::vector<Buffer> one, all, other;
  for (std::size_t rank = 0; rank < n; ++rank) {
    one.push_back(ranks.upload(rank, values(DataType::kF32, elements, static_cast<unsigned>(rank) + 1)));
    all.push_back(ranks.upload(rank, values(DataType::kF32, elements * n, static_cast<unsigned>(rank) + 100)));
    other.push_back(ranks.upload(rank, Bytes(bytes * n)));
  }
  std::vector<Bytes> result;
  const auto keep = [&](const std::vector<Buffer>& from, std::size_t count) {
    for (std::size_t rank = 0; rank < n; ++rank) result.push_back(ranks.download(rank, from[rank], count));
  };
  const auto each = [&](const auto& call) {
    for (std::size_t rank = 0; rank < n; ++rank) call(rank, ranks.comms[rank], ranks.streams[rank]);
  };
  const auto part = [&](const Buffer& buffer) { return buffer.slice(0, bytes); };
  const auto whole = [&](const Buffer& buffer) { return buffer.slice(0, bytes * n); };
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_reduce(part(other[r]), part(one[r]), DataType::kF32, ReduceOp::kAvg, stream);
  });
  keep(other, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_reduce_scaled(part(one[r]), part(one[r]), DataType::kF32, static_cast<double>(r) + 0.5, stream);
  });
  keep(one, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.reduce_scatter(part(one[r]), whole(all[r]), DataType::kF32, ReduceOp::kSum, stream);
  });
  keep(one, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.reduce(part(other[r]), part(one[r]), DataType::kF32, ReduceOp::kProd, static_cast<int>(n) - 1, stream);
  });
  result.push_back(ranks.download(n - 1, other[n - 1], bytes));
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_gather(whole(other[r]), part(one[r]), stream);
  });
  keep(other, bytes * n);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.broadcast(part(one[r]), part(all[r]), static_cast<int>(n) / 2, stream);
  });
  keep(one, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_to_all(whole(other[r]), whole(all[r]), stream);
  });
  keep(other, bytes * n);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.gather(whole(all[r]), part(one[r]), 0, stream);
  });
  keep(all, bytes * n);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.scatter(part(one[r]), whole(other[r]), 0, stream);
  });
  each([&](std::size_t, Communicator& comm, StreamRef stream) { comm.barrier(stream); });
  keep(one, bytes);
  if (n == 1) return result;
  Group group;  // round the ring, and back
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    const int next = static_cast<int>((r + 1) % n), before = static_cast<int>((r + n - 1) % n);
    comm.send(part(one[r]), next, stream);
    comm.recv(part(all[r]), before, stream);
    comm.send(other[r].slice(0, 1), before, stream);
    comm.recv(other[r].slice(bytes, 1), next, stream);
  });
  group.end();
  keep(all, bytes);
  keep(other, bytes * n);
  return result;
}

class RanksOnSim : public testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(By, RanksOnSim,
                         testing::Values(Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree,
                                         Algorithm::kDoubling),
                         [](const auto& one) { return std::string(algorithm_name(one.param)); });

TEST_P(RanksOnSim, GiveTheBitsOfCpu) {
  for (const int count : {1, 2, 3, 5}) {
    for (const std::size_t elements : {1U, 333U, 400'000U}) {
      Ranks cpu("cpu", count, with(GetParam())), sim(world(), count, with(GetParam()));
      EXPECT_TRUE(every_call(cpu, elements) == every_call(sim, elements)) << count << " ranks, " << elements;
    }
  }
}

}  // namespace
}  // namespace slip
