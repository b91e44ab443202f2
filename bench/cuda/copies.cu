// Pinned copies, compared with cudaMemcpyAsync. Each side allocates its own memory, because the allocation can change
// the rate of copies.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "bars.hpp"
#include "gpu.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMoved =
    1024 * kMiB;                     // bytes of a sample: 20 ms at 55 GB/s, so that the time of a sync is negligible
constexpr std::size_t kProbes = 64;  // number of words that are checked, spread over the copy

enum class Way { kIn, kOut };

class RawMemory {
 public:
  explicit RawMemory(std::size_t bytes) {
    check(cudaMallocHost(&host, bytes), "cudaMallocHost");
    check(cudaMalloc(&on_device, bytes), "cudaMalloc");
  }
  ~RawMemory() {
    cudaFree(on_device);
    cudaFreeHost(host);
  }
  RawMemory(const RawMemory&) = delete;
  RawMemory& operator=(const RawMemory&) = delete;
  void* host = nullptr;
  void* on_device = nullptr;
};

// The source and the target of the copies of one side. Before a sample, the probed words of source and target get
// different new values; after it they must be equal.
struct Ends {
  void* host;
  void* on_device;
  std::size_t bytes;
  Way way;

  void prepare(unsigned serial) const {
    for (std::size_t i = 0; i < kProbes; ++i) {
      const unsigned source = serial * 1000 + static_cast<unsigned>(i), target = ~source;
      put(at(host, i), way == Way::kIn ? source : target);
      put(at(on_device, i), way == Way::kIn ? target : source);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void expect_copied(unsigned serial) const {
    void* const target = way == Way::kIn ? on_device : host;
    for (std::size_t i = 0; i < kProbes; ++i) {
      unsigned word = 0;
      check(cudaMemcpy(&word, at(target, i), sizeof word, cudaMemcpyDefault), "cudaMemcpy");
      expect(word == serial * 1000 + static_cast<unsigned>(i), "a copy did not arrive");
    }
  }

 private:
  void* at(void* base, std::size_t i) const {
    const std::size_t last = bytes - sizeof(unsigned);
    return static_cast<std::byte*>(base) + last * i / (kProbes - 1) / sizeof(unsigned) * sizeof(unsigned);
  }
  static void put(void* where, unsigned word) {
    check(cudaMemcpy(where, &word, sizeof word, cudaMemcpyDefault), "cudaMemcpy");
  }
};

Recorded record_copies(Context& context, std::size_t bytes, Way way) {
  const std::size_t copies = std::max<std::size_t>(1, context.iterations(kMoved) / bytes);
  const Buffer host = device().alloc(bytes, MemoryKind::kPinned), on_device = device().alloc(bytes);
  const RawMemory raw(bytes);
  std::memset(host.native(), 1, bytes);
  std::memset(raw.host, 1, bytes);
  const Stream stream = device().stream(StreamFlags::kNonBlocking);
  const RawStream raw_stream;
  unsigned serial = 0;
  const auto rate = [&](void* at_host, void* at_device, const auto& copy, const auto& in) {
    const Ends ends{at_host, at_device, bytes, way};
    ends.prepare(++serial);
    const Timer timer;
    for (std::size_t i = 0; i < copies; ++i) copy();
    in.sync();
    const double elapsed = timer.elapsed_ns();
    check(cudaGetLastError(), "copy");
    ends.expect_copied(serial);
    return static_cast<double>(copies * bytes) / elapsed * 1e9;
  };
  const Range from = way == Way::kIn ? host : on_device, to = way == Way::kIn ? on_device : host;
  const auto copy_ours = [&] { stream.copy(to, from); };
  const auto copy_raw = [&] {
    if (way == Way::kIn) cudaMemcpyAsync(raw.on_device, raw.host, bytes, cudaMemcpyHostToDevice, raw_stream);
    else cudaMemcpyAsync(raw.host, raw.on_device, bytes, cudaMemcpyDeviceToHost, raw_stream);
  };
  Pairs pairs = take_pairs(
      context, [&] { return rate(host.native(), on_device.native(), copy_ours, stream); },
      [&] { return rate(raw.host, raw.on_device, copy_raw, raw_stream); });
  return {{"ours", std::move(pairs.ours), {}}, {{"cudaMemcpyAsync", std::move(pairs.raw), {}}}};
}

}  // namespace

void add_copy_bars(Harness& harness) {
  for (const std::size_t size : {4, 64, 256}) {
    for (const Way way : {Way::kIn, Way::kOut}) {
      harness.add(
          {.area = "cuda",
           .name = std::string(way == Way::kIn ? "copy_in_" : "copy_out_") + std::to_string(size) + "MiB_pinned",
           .unit = Unit::kBytesPerSecond,
           .better = Better::kHigher,
           .target = 0.99,
           .record = on_gpu([=](Context& context) { return record_copies(context, size * kMiB, way); })});
    }
  }
}

}  // namespace slip::bench
