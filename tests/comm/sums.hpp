// Adder: a rank that adds numbers with the others and checks the sums.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "slip/communicator.hpp"

namespace slip::test {

class Adder {
 public:
  Adder() = default;
  explicit Adder(Device on) : device_(std::move(on)) {}

  const Device& device() const { return device_; }
  const Stream& stream() const { return stream_; }

  // Begins to add 1, 2, 3, ... of all ranks of the communicator.
  Buffer start_sum(Communicator& comm, std::size_t elements) const {
    Buffer data = device_.alloc(elements * 4, MemoryKind::kPinned);
    std::ranges::fill(data.host_write<std::uint32_t>().span(), static_cast<std::uint32_t>(comm.rank() + 1));
    comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream_);
    return data;
  }
  // What is wrong with the sum; empty if it is right.
  std::string wrong_sum(Communicator& comm, std::size_t elements = 5000) const {
    const Buffer data = start_sum(comm, elements);
    stream_.sync();
    const auto expected = static_cast<std::uint32_t>(comm.nranks() * (comm.nranks() + 1) / 2);
    for (const std::uint32_t one : data.host_read<std::uint32_t>()) {
      if (one != expected) return fmt::format("{} instead of {} on rank {}", one, expected, comm.rank());
    }
    return "";
  }

 private:
  Device device_ = Device::open("cpu", {.compute_workers = 2});
  Stream stream_ = device_.stream();
};

}  // namespace slip::test
