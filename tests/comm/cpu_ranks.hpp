// Ranks on cpu devices, each in a thread, and the expected results of their calls.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "comm/reduce/reduce.hpp"
#include "reduce_reference.hpp"
#include "slip/communicator.hpp"
#include "slip/stream.hpp"
#include "support/ranks.hpp"

namespace slip::test {

using Bytes = std::vector<std::byte>;

// Random values of the type whose sums are finite: random bits would often be NaN.
inline Bytes values(DataType type, std::uint64_t elements, unsigned seed) {
  std::mt19937_64 random(seed);
  const std::size_t size = bytes_of(type);
  Bytes bytes(elements * size);
  if (!is_float(type)) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t bits = random();
      std::memcpy(bytes.data() + at, &bits, std::min(sizeof(bits), bytes.size() - at));
    }
    return bytes;
  }
  for (std::uint64_t i = 0; i < elements; ++i) {
    const std::uint64_t bits = encode(type, static_cast<double>(random() % 1000) / 64 - 7);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

// A rank: its device, a stream and buffers in device memory.
class Rank {
 public:
  explicit Rank(Communicator& communicator) : comm(communicator) {}

  Buffer upload(const Bytes& bytes) const {
    Buffer pinned = device.alloc(std::max<std::size_t>(bytes.size(), 1), MemoryKind::kPinned);
    if (!bytes.empty()) std::memcpy(pinned.host_write<std::byte>().begin(), bytes.data(), bytes.size());
    return pinned;
  }
  Bytes download(const Buffer& buffer, std::size_t bytes) const {
    stream.sync();
    const HostView<const std::byte> view = buffer.host_read<std::byte>();
    return {view.begin(), view.begin() + bytes};
  }

  Communicator& comm;
  Device device = Device::open("cpu", {.compute_workers = 2});
  Stream stream = device.stream();
};

// Each rank in a thread, with a communicator of all.
inline std::vector<Met> with_ranks(int count, const std::function<void(Rank&)>& body,
                                   CommunicatorOptions options = {}) {
  const std::vector<Device> devices(static_cast<std::size_t>(count), Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  return as_ranks(
      count,
      [&](int index) {
        Rank rank(comms[static_cast<std::size_t>(index)]);
        body(rank);
      },
      [&](int index) { comms[static_cast<std::size_t>(index)].abort(); });
}

inline Bytes reduced(DataType type, ReduceOp op, const std::vector<Bytes>& from) {
  Bytes to(from.front().size());
  std::vector<const void*> sources;
  for (const Bytes& one : from) sources.push_back(one.data());
  if (!to.empty()) {
    const std::uint64_t divisor = op == ReduceOp::kAvg ? from.size() : 1;
    comm::reduce({type, op, divisor, {}}, to.data(), sources, to.size() / bytes_of(type));
  }
  return to;
}

}  // namespace slip::test
