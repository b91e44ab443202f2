// Reductions of a few sources on one core, in bytes of result per second. Compared with hand-written loops for one type
// and one number of sources, and with a copy of as many bytes.
#include "comm/reduce/reduce.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bars.hpp"
#include "base/small_floats.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slip::bench {
namespace {

constexpr std::size_t kMaxRanks = 8;
constexpr std::size_t kMoved = std::size_t{256} << 20;  // bytes of results in one sample

// One result and its sources; their pages are touched before the measurement.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    for (auto& part : parts_) {
      part.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
      std::memset(part.get(), 0, bytes);
    }
  }
  std::size_t bytes() const { return bytes_; }
  template <class T = void>
  T* to() const {
    return reinterpret_cast<T*>(parts_[kMaxRanks].get());
  }
  template <class T>
  const T* from(std::size_t rank) const {
    return reinterpret_cast<const T*>(parts_[rank].get());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::array<std::unique_ptr<std::byte, Free>, kMaxRanks + 1> parts_;
};

const Memory& memory_of(std::size_t bytes) {
  static std::vector<std::unique_ptr<Memory>> all;
  for (const auto& memory : all) {
    if (memory->bytes() == bytes) return *memory;
  }
  return *all.emplace_back(std::make_unique<Memory>(bytes));
}

template <class Function>
Measure rate(std::size_t bytes, Function function) {
  return [=](Context& context) -> std::optional<double> {
    const Memory& memory = memory_of(bytes);
    const std::size_t times = std::max<std::size_t>(context.iterations(kMoved) / bytes, 1);
    const Timer timer;
    for (std::size_t i = 0; i < times; ++i) {
      function(memory);
      clobber_memory();
    }
    return static_cast<double>(bytes * times) / timer.elapsed_ns() * 1e9;
  };
}

Measure ours(const comm::Reduction& how, std::size_t ranks, std::size_t bytes) {
  return rate(bytes, [=](const Memory& memory) {
    std::array<const void*, kMaxRanks> from{};
    for (std::size_t i = 0; i < ranks; ++i) from[i] = memory.from<std::byte>(i);
    comm::reduce(how, memory.to(), std::span<const void* const>(from).first(ranks),
                 memory.bytes() / bytes_of(how.type));
  });
}

// A plain loop.
template <std::size_t kRanks>
void naive_sum(const Memory& memory) {
  float* to = memory.to<float>();
  for (std::size_t i = 0; i < memory.bytes() / 4; ++i) {
    float sum = memory.from<float>(0)[i];
    for (std::size_t rank = 1; rank < kRanks; ++rank) sum += memory.from<float>(rank)[i];
    to[i] = sum;
  }
}

// With the baseline vector instructions of the architecture, unrolled twice.
template <std::size_t kRanks>
void hand_written_sum(const Memory& memory) {
  float* to = memory.to<float>();
  std::array<const float*, kRanks> from;
  for (std::size_t rank = 0; rank < kRanks; ++rank) from[rank] = memory.from<float>(rank);
#if defined(__aarch64__)
  for (std::size_t i = 0; i < memory.bytes() / 4; i += 8) {
    float32x4_t low = vld1q_f32(from[0] + i), high = vld1q_f32(from[0] + i + 4);
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      low = vaddq_f32(low, vld1q_f32(from[rank] + i));
      high = vaddq_f32(high, vld1q_f32(from[rank] + i + 4));
    }
    vst1q_f32(to + i, low);
    vst1q_f32(to + i + 4, high);
  }
#elif defined(__x86_64__)
  for (std::size_t i = 0; i < memory.bytes() / 4; i += 8) {
    __m128 low = _mm_loadu_ps(from[0] + i), high = _mm_loadu_ps(from[0] + i + 4);
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      low = _mm_add_ps(low, _mm_loadu_ps(from[rank] + i));
      high = _mm_add_ps(high, _mm_loadu_ps(from[rank] + i + 4));
    }
    _mm_storeu_ps(to + i, low);
    _mm_storeu_ps(to + i + 4, high);
  }
#else
  for (std::size_t i = 0; i < memory.bytes() / 4; ++i) {
    float sum = from[0][i];
    for (std::size_t rank = 1; rank < kRanks; ++rank) sum += from[rank][i];
    to[i] = sum;
  }
#endif
}

template <class T>
void naive_small_sum(const Memory& memory) {
  const T *a = memory.from<T>(0), *b = memory.from<T>(1);
  for (std::size_t i = 0; i < memory.bytes() / sizeof(T); ++i)
    memory.to<T>()[i] = base::from_float<T>(base::to_float(a[i]) + base::to_float(b[i]));
}

void copy_one(const Memory& memory) { std::memcpy(memory.to(), memory.from<std::byte>(0), memory.bytes()); }

struct Size {
  const char* name;
  std::size_t bytes;
};
constexpr std::array<Size, 2> kSizes = {{{"128KiB", 128 << 10}, {"64MiB", 64 << 20}}};

Bar bar(std::string name, Measure measure, std::vector<Peer> peers, double target) {
  return {.area = "collectives",
          .name = std::move(name),
          .unit = Unit::kBytesPerSecond,
          .better = Better::kHigher,
          .ours = std::move(measure),
          .peers = std::move(peers),
          .target = target};
}

}  // namespace

void add_reduce_bars(Harness& harness) {
  for (const auto& [size, bytes] : kSizes) {
    const std::string name = std::string("_") + size;
    const comm::Reduction sum;
    harness.add(bar("reduce_2_f32" + name, ours(sum, 2, bytes),
                    {{.name = "by_hand", .measure = rate(bytes, hand_written_sum<2>)},
                     {.name = "naive", .measure = rate(bytes, naive_sum<2>)}},
                    0.95));
    harness.add(bar("reduce_4_f32" + name, ours(sum, 4, bytes),
                    {{.name = "by_hand", .measure = rate(bytes, hand_written_sum<4>)},
                     {.name = "naive", .measure = rate(bytes, naive_sum<4>)}},
                    0.95));
    harness.add(bar("reduce_8_f32" + name, ours(sum, 8, bytes),
                    {{.name = "by_hand", .measure = rate(bytes, hand_written_sum<8>)}}, 0.8));
    harness.add(bar("reduce_2_f16" + name, ours({.type = DataType::kF16}, 2, bytes),
                    {{.name = "naive", .measure = rate(bytes, naive_small_sum<base::F16>)}}, 1));
    harness.add(bar("reduce_2_bf16" + name, ours({.type = DataType::kBF16}, 2, bytes),
                    {{.name = "naive", .measure = rate(bytes, naive_small_sum<base::Bf16>)}}, 1));
    harness.add(bar("reduce_2_f8e4m3" + name, ours({.type = DataType::kF8E4M3}, 2, bytes),
                    {{.name = "naive", .measure = rate(bytes, naive_small_sum<base::F8E4M3>)}}, 1));
  }
  // Bound by memory: two reads and a write take 1.5 times as long as one of each.
  const std::size_t large = kSizes.back().bytes;
  harness.add(bar("reduce_2_f32_64MiB_of_memcpy", ours({}, 2, large),
                  {{.name = "memcpy", .measure = rate(large, copy_one)}}, 0.6));
}

}  // namespace slip::bench
