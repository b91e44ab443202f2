// The parts of measure_costs: a stopwatch, memory to run one op by itself, and the measurement of interference.
// Interference: kernels take longer while loads run, and loads while kernels run. Another program on the same cores
// disturbs measurements; a disturbance can only make a time longer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "slip/costs.hpp"
#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip::flow {

inline constexpr double kPicosPerSecond = 1e12;
inline constexpr Picos kMilli = 1'000'000'000;  // 1 ms

// The longer of the two middle times if their number is even. REQUIRES: `times` is not empty.
Picos median(std::vector<Picos> times);

// Stopwatch: measures how long work takes, by the device's clock. The host issues a batch of work behind a gate, a
// value that the stream waits for. Then it opens the gate. So the time of the host's calls does not count. The result
// is the median of several batches. One thread at a time.
class Stopwatch {
 public:
  // Issues one piece of work, number `index` of its batch.
  using Issue = std::function<void(StreamRef stream, int index)>;
  struct Work {
    const Issue& issue;
    Picos time;  // of one piece, alone
  };

  explicit Stopwatch(const Device& device);

  // The time of one piece, after a warm-up; never 0. Throws the work's error.
  Picos time(const Issue& issue);
  // The time of one piece of `main` while pieces of `beside` run in another stream.
  Picos time_beside(const Work& main, const Work& beside);

 private:
  class Gate;
  Picos batch(const Issue& main, int count, const Issue* beside = nullptr, int beside_count = 0);

  Device device_;
  int room_;                 // pieces that may be queued behind a gate
  Buffer gate_value_;        // a 32-bit counter: the gate of batch n opens when the value is n
  std::uint32_t round_ = 0;  // number of the last batch
  Stream main_, beside_;
};

// HostRing: pinned memory for measuring copies, used piece by piece in a cycle. A single piece would stay in the
// processor's caches, and memory that was never written would be one shared page of zeros.
class HostRing {
 public:
  static constexpr std::uint64_t kEnough = std::uint64_t{64} << 20;  // bytes; larger than most caches

  HostRing(const Device& device, std::uint64_t bytes, Here here)
      : memory_(device.alloc(bytes, MemoryKind::kPinned, "host ring", here)) {
    const HostView<std::byte> view = memory_.host_write<std::byte>(here);
    std::fill(view.begin(), view.end(), std::byte{1});
  }

  // The next piece of the cycle. REQUIRES: at most the bytes of the ring.
  Range next(std::uint64_t bytes) {
    if (at_ + bytes > memory_.bytes()) at_ = 0;
    const Range place = memory_.slice(at_, bytes);
    at_ += bytes;
    return place;
  }

 private:
  Buffer memory_;
  std::uint64_t at_ = 0;
};

// OpMemory: the layout of one op's values in device memory, so that measure_costs can run the op by itself. It owns no
// memory: the caller passes the range.
class OpMemory {
 public:
  // All bytes that the op uses of one value lie together. So an op that works in place in the graph also works in place
  // here.
  OpMemory(const Graph& graph, const GraphOp& op);
  std::uint64_t bytes() const { return bytes_; }

  // Runs the op on `place`, which has bytes() bytes.
  void launch(StreamRef stream, Range place) const;
  // Runs the op with separate memory for each purpose, so that no op reads data that another op wrote. It reads
  // floating-point values from `numbers` and integers from `zeros`, and writes to `sink`.
  struct Apart {
    Range numbers, zeros, sink;
  };
  void launch(StreamRef stream, const Apart& places) const;
  struct ApartBytes {
    std::uint64_t numbers = 0, zeros = 0, sink = 0;
  };
  ApartBytes apart_bytes() const;
  // Sets integer values to zero: they may be positions or counts, which must be in range.
  void clear_integers(StreamRef stream, Range place) const {
    for (const Part& part : parts_) {
      if (part.integers) stream.fill(place.slice(part.at, part.end - part.first), 0, "zeros");
    }
  }

 private:
  struct Part {
    Value value;
    std::uint64_t first = 0, end = 0;  // first byte of the value that the op uses, and the byte after the last one
    std::uint64_t at = 0;              // offset of `first` in the memory
    bool integers = false;
  };
  void include(const Graph& graph, const ValueBytes& bytes);
  bool is_integers(const ValueBytes& bytes) const {
    return std::ranges::any_of(parts_, [&](const Part& part) { return part.value == bytes.value && part.integers; });
  }
  Range find(const ValueBytes& bytes, Range place) const;

  const GraphOp& op_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

// Fills with small numbers of changing sign that are valid as bf16 and as f32. Kernels may be faster on zeros and
// slower on denormals, and the clock of a GPU depends on how many bits change.
void fill_with_numbers(const Device& device, StreamRef stream, Range to);

inline std::uint64_t weight_bytes_of(const Graph& graph, const GraphOp& op) {
  std::uint64_t bytes = 0;
  for (const ValueBytes& read : op.reads) {
    if (graph[read.value].role == ValueRole::kWeight) bytes += read.bytes;
  }
  return bytes;
}

// The sample of an op. Its sizes distinguish ops of one kernel.
inline CostSample sample_of(const Graph& graph, const GraphOp& op, Picos time) {
  return {std::string(op.kernel->name.text()), weight_bytes_of(graph, op), op.cost.flops, op.cost.bytes, time};
}

inline bool same_size(const CostSample& a, const CostSample& b) {
  return a.kernel == b.kernel && a.weight_bytes == b.weight_bytes && a.flops == b.flops && a.bytes == b.bytes;
}

// Kernels and loads that run concurrently share cores, memory and links, and take at most a few times as long. A larger
// measured slowdown shows that another program had the cores for a time slice.
inline constexpr double kMaxPlausibleSlowdown = 8;

struct InterferenceTimes {
  Picos alone = 0;
  Picos beside = 0;  // the same work while the other work runs

  // 0.07: the work takes 7 % longer while the other work runs. Never negative; 0 if `alone` is unknown.
  double slowdown() const;
};

// `measure` times the work alone and concurrently. If the slowdown is implausible, `measure` is repeated, at most 3
// times, until the slowdown is plausible or a repeat takes about as long. The result has the shortest time of each
// kind.
InterferenceTimes measure_interference(const std::function<InterferenceTimes()>& measure);

// The slowdown of `times`, at most kMaxPlausibleSlowdown. Logs a warning with `what` if the measured one is larger.
double plausible_slowdown(const InterferenceTimes& times, std::string_view what);

// Times of a whole graph that runs for a while. Short bursts of one op do not show them. Under sustained load a
// processor lowers its clock, and an op finds data of the previous op in the caches.
struct SustainedTimes {
  InterferenceTimes ops;   // one pass over all ops of the graph; `beside`: while loads run in another stream
  InterferenceTimes load;  // one load; `beside`: while ops run
};

// `load` issues one load, which takes about `load_time`. The measurement takes a few seconds. Returns zeros on a device
// with virtual time, and if the device has too little free memory.
SustainedTimes sustained_times(const Graph& graph, const Device& device, const std::function<void(StreamRef)>& load,
                               Picos load_time);

}  // namespace slip::flow
