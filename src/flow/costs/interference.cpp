#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/terminal.hpp"
#include "flow/costs/measuring.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

constexpr int kMaxRepeats = 3;
constexpr double kNoise = 0.9;  // a repeat that takes more than this share of the earlier time confirms it

// Long enough for the processor to settle at its sustained clock: a GPU needs some tenths of a second.
Picos chunk_of(const Device& device) { return (device.info().name.starts_with("cuda") ? 400 : 100) * kMilli; }

constexpr std::uint64_t kSpread = std::uint64_t{256} << 20;  // larger than the caches: ops read weights from memory

// Limits the host time of one measurement: issuing a tiny load takes the host longer than the device.
constexpr int kMaxLoads = 50'000;

// Times passes over all ops of a graph on one stream, alone or while loads run on another stream.
class Passes {
 public:
  Passes(const Graph& graph, const Device& device)
      : main_(device.stream(StreamFlags::kNonBlocking)), beside_(device.stream(StreamFlags::kNonBlocking)) {
    for (const GraphOp& op : graph.ops()) {
      ops_.emplace_back(graph, op);
      const OpMemory::ApartBytes bytes = ops_.back().apart_bytes();
      max_.numbers = std::max({max_.numbers, bytes.numbers, kAlignment});
      max_.zeros = std::max({max_.zeros, bytes.zeros, kAlignment});
      max_.sink = std::max({max_.sink, bytes.sink, kAlignment});
    }
  }

  // Returns false if the device has too little free memory.
  bool take_memory(const Device& device) {
    const MemoryInfo memory = device.memory();
    const std::uint64_t free = memory.total - std::min(memory.total, memory.used);
    const std::uint64_t needed = max_.numbers + max_.zeros + max_.sink;
    if (needed > free) return false;
    spread_ = max_.numbers < kSpread && kSpread <= (free - needed) / 2;
    numbers_ = device.alloc(max_.numbers + (spread_ ? kSpread : 0), MemoryKind::kDevice, "numbers");
    zeros_ = device.alloc(max_.zeros, MemoryKind::kDevice, "zeros");
    sink_ = device.alloc(max_.sink, MemoryKind::kDevice, "sink");
    fill_with_numbers(device, main_, numbers_);
    main_.fill(zeros_, 0, "zeros");
    main_.sync();
    return true;
  }

  // The mean time of a pass, while `loads` loads per pass run in the other stream.
  Picos time(int passes, int loads, const std::function<void(StreamRef)>& load) {
    const TimedEvent begin = main_.record_timed();
    for (int i = 0; i < passes; ++i) {
      for (int k = 0; k < loads; ++k) load(beside_);
      for (const OpMemory& op : ops_) launch(op);
    }
    const TimedEvent end = main_.record_timed();
    main_.sync();
    const Picos time = Picos{(end - begin).count()} * 1000 / passes;
    beside_.sync();
    return std::max<Picos>(time, 1);
  }

  // The mean time of a load, while `passes` passes run in the other stream.
  Picos time_loads(int loads, int passes, const std::function<void(StreamRef)>& load) {
    const TimedEvent begin = beside_.record_timed();
    for (int i = 0; i < loads; ++i) load(beside_);
    const TimedEvent end = beside_.record_timed();
    for (int i = 0; i < passes; ++i) {
      for (const OpMemory& op : ops_) launch(op);
    }
    beside_.sync();
    const Picos time = Picos{(end - begin).count()} * 1000 / loads;
    main_.sync();
    return std::max<Picos>(time, 1);
  }

 private:
  void launch(const OpMemory& op) {
    const std::uint64_t bytes = op.apart_bytes().numbers;
    if (at_ + bytes > numbers_.bytes()) at_ = 0;
    op.launch(main_, OpMemory::Apart{numbers_.slice(at_, bytes), zeros_, sink_});
    if (spread_) at_ += bytes;
  }

  std::vector<OpMemory> ops_;
  Buffer numbers_, zeros_, sink_;
  OpMemory::ApartBytes max_;
  bool spread_ = false;   // each launch reads other bytes of numbers_, so that they come from memory
  std::uint64_t at_ = 0;  // offset of the next launch in numbers_
  Stream main_, beside_;
};

}  // namespace

double InterferenceTimes::slowdown() const {
  if (alone <= 0) return 0;
  return std::max(0.0, static_cast<double>(beside) / static_cast<double>(alone) - 1);
}

InterferenceTimes measure_interference(const std::function<InterferenceTimes()>& measure) {
  InterferenceTimes best = measure();
  for (int repeat = 0; repeat < kMaxRepeats && best.slowdown() > kMaxPlausibleSlowdown; ++repeat) {
    const InterferenceTimes again = measure();
    const bool confirmed = static_cast<double>(again.beside) > kNoise * static_cast<double>(best.beside);
    best.alone = std::min(best.alone, again.alone);
    best.beside = std::min(best.beside, again.beside);
    if (confirmed) break;
  }
  return best;
}

double plausible_slowdown(const InterferenceTimes& times, std::string_view what) {
  const double measured = times.slowdown();
  if (measured <= kMaxPlausibleSlowdown) return measured;
  base::log_line(
      fmt::format("measured that {} {:.1f} times as long; other programs disturb this, so {:g} times is assumed. "
                  "Measure again on idle cores, or give costs that were measured there (--costs)",
                  what, 1 + measured, 1 + kMaxPlausibleSlowdown));
  return kMaxPlausibleSlowdown;
}

SustainedTimes sustained_times(const Graph& graph, const Device& device, const std::function<void(StreamRef)>& load,
                               Picos load_time) {
  if (device.info().virtual_time) return {};
  Passes passes(graph, device);
  if (!passes.take_memory(device)) return {};
  passes.time(1, 0, load);
  const Picos first = passes.time(1, 0, load);
  const int count = static_cast<int>(std::clamp<Picos>(chunk_of(device) / first, 1, 2000));
  const Picos warm = std::min(first, passes.time(count, 0, load));  // other programs can only make a time longer
  // Enough loads to keep the other stream busy for 5/4 of a pass, so that loads run while every op runs.
  const int loads = static_cast<int>(std::clamp<Picos>(warm * 5 / 4 / std::max<Picos>(load_time, 1) + 1, 1, 4096));
  const int passes_beside = std::clamp(kMaxLoads / loads, 1, count);
  constexpr int kTurns = 2;  // rounds that alternate both measurements, so that a drifting clock rate biases neither
  const auto in_turn = [](const std::function<Picos()>& alone, const std::function<Picos()>& beside) {
    return measure_interference([&] {
      InterferenceTimes mean;
      for (int turn = 0; turn < kTurns; ++turn) {
        mean.alone += alone() / kTurns;
        mean.beside += beside() / kTurns;
      }
      return mean;
    });
  };
  SustainedTimes times;
  times.ops =
      in_turn([&] { return passes.time(count, 0, load); }, [&] { return passes.time(passes_beside, loads, load); });
  // The loads take half as long as the ops, so that ops run the whole time.
  const int fewer = static_cast<int>(std::clamp<Picos>(warm * count / 2 / std::max<Picos>(load_time, 1), 1, 1000));
  times.load =
      in_turn([&] { return passes.time_loads(fewer, 0, load); }, [&] { return passes.time_loads(fewer, count, load); });
  return times;
}

}  // namespace slip::flow
