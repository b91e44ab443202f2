// Overlap of copies and kernels: the data is split into chunks, and while the kernel of one chunk runs, the next chunk
// is copied.
//
// It runs on a simulated H200, where times are exact. With one stream, each chunk takes the time of its copy plus the
// time of its kernel. With one stream for copies and one for kernels, it takes the longer of the two. An event for each
// chunk orders its kernel after its copy; no other order is needed.
#include <cstdio>

#include "slip/slip.hpp"

namespace {

constexpr std::size_t kChunks = 8, kChunkBytes = 4 << 20;

const slip::Kernel kDouble{"double", [](const slip::Args& args) {
                             for (float& value : args.out<float>(0)) value *= 2;
                           }};

// Copies all chunks to the device and runs the kernel on each. Returns the time on the device.
slip::Picos run(const slip::Device& device, slip::StreamRef copies, slip::StreamRef kernels, const slip::Buffer& host,
                const slip::Buffer& memory) {
  const slip::Picos start = device.now();
  for (std::size_t i = 0; i < kChunks; ++i) {
    const auto chunk = memory.slice(i * kChunkBytes, kChunkBytes);
    copies.copy(chunk, host.slice(i * kChunkBytes, kChunkBytes));
    kernels.wait(copies.record());  // the kernel of this chunk runs after its copy
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
