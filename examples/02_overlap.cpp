// Copies behind kernels: data in chunks, the next chunk copied while this one is computed.
//
// Run on a simulated H200, because there the time is exact. In one stream a chunk costs copy + kernel; with a stream
// for copies and one for kernels it costs the longer of the two. Events order each chunk, and nothing else.
#include <cstdio>

#include "slip/slip.hpp"

namespace {

constexpr std::size_t kChunks = 8, kChunkBytes = 4 << 20;

const slip::Kernel kDouble{"double", [](const slip::Args& args) {
                             for (float& value : args.out<float>(0)) value *= 2;
                           }};

// All chunks up and through the kernel; returns how long the device took.
slip::Picos run(const slip::Device& device, slip::StreamRef copies, slip::StreamRef kernels, const slip::Buffer& host,
                const slip::Buffer& memory) {
  const slip::Picos start = device.now();
  for (std::size_t i = 0; i < kChunks; ++i) {
    const auto chunk = memory.slice(i * kChunkBytes, kChunkBytes);
    copies.copy(chunk, host.slice(i * kChunkBytes, kChunkBytes));
    kernels.wait(copies.record());  // this chunk's kernel after this chunk's copy
    kernels.launch(kDouble, {.reads = {chunk}, .writes = {chunk}}, {.time = 80'000'000});  // 80 us, in picoseconds
  }
  device.sync();
  return device.now() - start;
}

}  // namespace

int main() {
  const auto device = slip::Device::open("sim:h200");
  auto host = device.alloc(kChunks * kChunkBytes, slip::MemoryKind::kPinned);
  for (float& value : host.host_write<float>()) value = 21;
  const auto memory = device.alloc(kChunks * kChunkBytes);
  const auto one = device.stream(), two = device.stream();

  const slip::Picos serial = run(device, one, one, host, memory);
  const slip::Picos overlapped = run(device, one, two, host, memory);
  std::printf("one stream %.0f us, two streams %.0f us\n", static_cast<double>(serial) * 1e-6,
              static_cast<double>(overlapped) * 1e-6);

  device.copy(host, memory);
  const bool right = host.host_read<float>()[kChunks * kChunkBytes / sizeof(float) - 1] == 42;
  return right && overlapped < serial * 7 / 10 ? 0 : 1;
}
