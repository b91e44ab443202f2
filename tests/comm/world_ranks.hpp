// A communicator of ranks on the devices of one world, all in the thread of the test.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "cpu_ranks.hpp"

namespace slip::test {

inline constexpr double kSwitchGbps = 100, kSwitchLatencyUs = 2;

// Ports of a switch, and memory that takes no time; a call costs the host nothing.
inline std::string sim_world(double memory_gbps = 1e6) {
  return fmt::format(
      "sim:{{\"name\": \"rank\", \"memory\": \"80 GB\", \"queues\": 8,"
      " \"compute\": {{\"flops\": \"100 TFLOP/s\", \"bandwidth\": \"{} GB/s\"}},"
      " \"copies\": {{\"in\": \"25 GB/s\", \"out\": \"25 GB/s\", \"latency\": \"1 us\"}},"
      " \"peers\": {{\"form\": \"switch\", \"bandwidth\": \"{} GB/s\", \"latency\": \"{} us\"}}}}",
      memory_gbps, kSwitchGbps, kSwitchLatencyUs);
}

// All ranks in one thread, each with a device, a stream and a communicator.
struct WorldRanks {
  explicit WorldRanks(std::vector<Device> of, const CommunicatorOptions& options = {})
      : devices(std::move(of)), comms(Communicator::init_all(devices, options)) {
    for (const Device& device : devices) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  }
  WorldRanks(const std::string& name, int count, const CommunicatorOptions& options = {})
      : WorldRanks(Device::open_all(name, count), options) {}
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
  // Virtual time from an instant at which all ranks are idle until all have done the given work.
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

inline CommunicatorOptions with(Algorithm algorithm, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  CommunicatorOptions options;
  options.algorithm = algorithm;
  options.timeout = timeout;
  return options;
}

}  // namespace slip::test
