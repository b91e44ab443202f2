#include "flow/costs/measuring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

constexpr Picos kBatch = 2 * kMilli;  // of work; long enough that the time to open the gate (class Gate) is negligible
constexpr Picos kLong = 50 * kMilli;  // longer work is measured in fewer batches
// Maximum number of pieces of work that are queued behind a closed gate. A full queue would block the host thread,
// which then could not open the gate. The queue of a GPU holds about a thousand launches. The queues of other devices
// hold cells (DeviceOptions::queue_depth), of which a piece takes several.
constexpr int kMaxHeld = 128;
constexpr std::size_t kCellsOfOp = 32;  // an estimate for one piece of work
constexpr int kMaxInBatch = 64;         // pieces of the measured work

// The number of pieces of work that may be queued behind a gate.
int room_behind_gate(const Device& device) {
  const std::size_t cells = device.options().queue_depth;
  return cells == 0 ? kMaxHeld : static_cast<int>(std::clamp<std::size_t>(cells / kCellsOfOp, 3, kMaxHeld));
}

// The number of pieces, each of this time, that take the wanted time: 1 to `max`.
int pieces(Picos wanted, Picos each, int max) {
  return static_cast<int>(std::clamp<Picos>(wanted / std::max<Picos>(each, 1), 1, max));
}

constexpr DataType kFloatingPoint[] = {DataType::kF8E4M3, DataType::kF8E5M2, DataType::kF16,
                                       DataType::kBF16,   DataType::kF32,    DataType::kF64};

constexpr int kMaxRepeats = 3;  // of an implausible measurement
constexpr double kNoise = 0.9;  // a repeat that takes more than this share of the earlier time confirms it

// How long the ops of one sustained measurement run: long enough for the processor to settle at its sustained clock. A
// GPU needs some tenths of a second.
Picos sustained_run_time(const Device& device) { return (device.info().name.starts_with("cuda") ? 400 : 100) * kMilli; }

constexpr std::uint64_t kSpread = std::uint64_t{256} << 20;  // larger than the caches: ops read weights from memory

// The maximum number of loads in one measurement. Issuing a tiny load takes the host longer than the device.
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
    const auto pass = [&] {
      for (int k = 0; k < loads; ++k) load(beside_);
      launch_all();
    };
    return mean_time(main_, passes, pass, beside_, [] {});
  }

  // The mean time of a load, while `passes` passes run in the other stream.
  Picos time_loads(int loads, int passes, const std::function<void(StreamRef)>& load) {
    return mean_time(
        beside_, loads, [&] { load(beside_); }, main_,
        [&] {
          for (int i = 0; i < passes; ++i) launch_all();
        });
  }

 private:
  // The mean time of `count` pieces of work in a stream, which issue() issues. issue_other() issues work to the other
  // stream afterwards.
  template <class Issue, class IssueOther>
  static Picos mean_time(StreamRef stream, int count, const Issue& issue, StreamRef other,
                         const IssueOther& issue_other) {
    const TimedEvent begin = stream.record_timed();
    for (int i = 0; i < count; ++i) issue();
    const TimedEvent end = stream.record_timed();
    issue_other();
    stream.sync();
    const Picos time = Picos{(end - begin).count()} * 1000 / count;
    other.sync();
    return std::max<Picos>(time, 1);
  }

  void launch_all() {
    for (const OpMemory& op : ops_) {
      const std::uint64_t bytes = op.apart_bytes().numbers;
      if (at_ + bytes > numbers_.bytes()) at_ = 0;
      op.launch(main_, OpMemory::Apart{numbers_.slice(at_, bytes), zeros_, sink_});
      if (spread_) at_ += bytes;
    }
  }

  std::vector<OpMemory> ops_;
  Buffer numbers_, zeros_, sink_;
  OpMemory::ApartBytes max_;
  bool spread_ = false;   // each launch reads other bytes of numbers_, so that caches do not have them
  std::uint64_t at_ = 0;  // offset of the next launch in numbers_
  Stream main_, beside_;
};

}  // namespace

Picos median(std::vector<Picos> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Makes streams wait until the host opens the gate: hold() enqueues a wait for a value that open() stores. The
// destructor opens the gate, too. Otherwise freeing memory would wait for the held streams forever.
class Stopwatch::Gate : base::NoCopy {
 public:
  explicit Gate(Stopwatch& watch) : watch_(watch) { ++watch_.round_; }
  ~Gate() { raise(); }

  void hold(StreamRef stream) const { stream.wait_value(watch_.gate_value_, watch_.round_, "gate"); }
  void open() {
    // A device in virtual time processes its queue only during calls of the host. Without this query the stream would
    // reach the gate only after raise() has opened it, and would not wait.
    if (watch_.device_.info().virtual_time) static_cast<void>(watch_.main_.query());
    raise();
  }

 private:
  void raise() {
    // release: work that starts after the gate opens observes the host's earlier writes.
    std::atomic_ref(*static_cast<std::uint32_t*>(watch_.gate_value_.native()))
        .store(watch_.round_, std::memory_order_release);
  }

  Stopwatch& watch_;
};

Stopwatch::Stopwatch(const Device& device)
    : device_(device),
      room_(room_behind_gate(device)),
      gate_value_(device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, "gate")),
      main_(device.stream(StreamFlags::kNonBlocking)),
      beside_(device.stream(StreamFlags::kNonBlocking)) {
  gate_value_.host_write<std::uint32_t>()[0] = 0;
}

Picos Stopwatch::time(const Issue& issue) {
  // The warm-up touches memory for the first time and loads code. It is not behind the gate: to load code, a GPU may
  // wait until all of its work is done.
  issue(main_, 0);
  main_.sync();
  const Picos first = batch(issue, 1);
  const int count = pieces(kBatch, first, std::min(kMaxInBatch, room_));
  std::vector<Picos> times;
  for (int i = 0; i < (first > kLong ? 3 : 7); ++i) times.push_back(batch(issue, count) / count);
  return std::max<Picos>(median(std::move(times)), 1);
}

Picos Stopwatch::time_beside(const Work& main, const Work& beside) {
  // The other work lasts twice as long as the main work alone, since the main work may take longer beside it.
  const Picos max_main_time = beside.time * (room_ - 2) / 2;  // a full queue lasts twice as long
  const int count = pieces(std::min(kBatch, max_main_time), main.time, std::min(kMaxInBatch, room_));
  const int needed = pieces(2 * count * main.time, beside.time, room_ - 2) + 2;
  std::vector<Picos> times;
  for (int i = 0; i < 3; ++i) times.push_back(batch(main.issue, count, &beside.issue, needed) / count);
  return median(std::move(times));
}

Picos Stopwatch::batch(const Issue& main, int count, const Issue* beside, int beside_count) {
  Gate gate(*this);
  if (beside) gate.hold(beside_);
  gate.hold(main_);
  for (int i = 0; i < beside_count; ++i) (*beside)(beside_, i);
  const TimedEvent begin = main_.record_timed();
  for (int i = 0; i < count; ++i) main(main_, i);
  const TimedEvent end = main_.record_timed();
  gate.open();
  main_.sync();
  if (beside) beside_.sync();
  return Picos{(end - begin).count()} * 1000;
}

OpMemory::OpMemory(const Graph& graph, const GraphOp& op) : op_(op) {
  for (const ValueBytes& read : op.reads) include(graph, read);
  for (const ValueBytes& write : op.writes) include(graph, write);
  for (Part& part : parts_) {
    part.first -= part.first % kAlignment;  // keeps the alignment that the bytes have in the value
    part.at = bytes_;
    bytes_ += aligned(part.end - part.first);
  }
  bytes_ = std::max(bytes_, kAlignment);  // an op may read and write no bytes
}

void OpMemory::include(const Graph& graph, const ValueBytes& bytes) {
  const std::uint64_t end = bytes.offset + bytes.bytes;
  for (Part& part : parts_) {
    if (part.value != bytes.value) continue;
    part.first = std::min(part.first, bytes.offset);
    part.end = std::max(part.end, end);
    return;
  }
  parts_.push_back(
      {.value = bytes.value,
       .first = bytes.offset,
       .end = end,
       .integers = std::ranges::find(kFloatingPoint, graph[bytes.value].type) == std::end(kFloatingPoint)});
}

Range OpMemory::find(const ValueBytes& bytes, Range place) const {
  const auto part = std::ranges::find(parts_, bytes.value, &Part::value);
  return place.slice(part->at + (bytes.offset - part->first), bytes.bytes);
}

void OpMemory::launch(StreamRef stream, Range place) const {
  std::vector<Range> reads, writes;
  for (const ValueBytes& read : op_.reads) reads.push_back(find(read, place));
  for (const ValueBytes& write : op_.writes) writes.push_back(find(write, place));
  stream.launch(*op_.kernel, {.reads = reads, .writes = writes, .scalars = op_.scalars, .name = op_.name}, op_.cost);
}

OpMemory::ApartBytes OpMemory::apart_bytes() const {
  ApartBytes bytes;
  for (const ValueBytes& read : op_.reads) (is_integers(read) ? bytes.zeros : bytes.numbers) += aligned(read.bytes);
  for (const ValueBytes& write : op_.writes) bytes.sink += aligned(write.bytes);
  return bytes;
}

void OpMemory::launch(StreamRef stream, const Apart& places) const {
  std::vector<Range> reads, writes;
  ApartBytes used;
  for (const ValueBytes& read : op_.reads) {
    const bool integers = is_integers(read);
    std::uint64_t& at = integers ? used.zeros : used.numbers;
    reads.push_back((integers ? places.zeros : places.numbers).slice(at, read.bytes));
    at += aligned(read.bytes);
  }
  for (const ValueBytes& write : op_.writes) {
    writes.push_back(places.sink.slice(used.sink, write.bytes));
    used.sink += aligned(write.bytes);
  }
  stream.launch(*op_.kernel, {.reads = reads, .writes = writes, .scalars = op_.scalars, .name = op_.name}, op_.cost);
}

void fill_with_numbers(const Device& device, StreamRef stream, Range to) {
  constexpr std::uint64_t kPattern = std::uint64_t{1} << 20;
  Buffer pattern = device.alloc(std::min<std::uint64_t>(kPattern, to.bytes), MemoryKind::kPinned, "numbers");
  {
    const HostView<std::uint16_t> numbers = pattern.host_write<std::uint16_t>();
    std::uint32_t state = 1;
    for (std::uint16_t& number : numbers) {
      state = state * 1664525u + 1013904223u;
      // As bfloat16: any sign, 2^-6 to 2^-3, any fraction.
      number =
          static_cast<std::uint16_t>((state >> 1 & 0x8000u) | ((0x79u + (state >> 30)) << 7) | (state >> 20 & 0x7fu));
    }
  }
  for (std::uint64_t at = 0; at < to.bytes; at += pattern.bytes()) {
    const std::uint64_t bytes = std::min<std::uint64_t>(pattern.bytes(), to.bytes - at);
    stream.copy(to.slice(at, bytes), pattern.slice(0, bytes), "numbers");
  }
  stream.sync();
}

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
  const int count = static_cast<int>(std::clamp<Picos>(sustained_run_time(device) / first, 1, 2000));
  const Picos pass_time = std::min(first, passes.time(count, 0, load));  // other programs can only make a time longer
  // Enough loads to keep the other stream busy for 5/4 of a pass, so that loads run while every op runs.
  const int loads = static_cast<int>(std::clamp<Picos>(pass_time * 5 / 4 / std::max<Picos>(load_time, 1) + 1, 1, 4096));
  const int passes_beside = std::clamp(kMaxLoads / loads, 1, count);
  constexpr int kRounds = 2;  // each has both measurements, so that a drifting clock rate biases neither
  const auto alternate = [](const std::function<Picos()>& alone, const std::function<Picos()>& beside) {
    return measure_interference([&] {
      InterferenceTimes mean;
      for (int round = 0; round < kRounds; ++round) {
        mean.alone += alone() / kRounds;
        mean.beside += beside() / kRounds;
      }
      return mean;
    });
  };
  SustainedTimes times;
  times.ops =
      alternate([&] { return passes.time(count, 0, load); }, [&] { return passes.time(passes_beside, loads, load); });
  // The loads take half as long as the ops, so that ops run the whole time.
  const int timed_loads =
      static_cast<int>(std::clamp<Picos>(pass_time * count / 2 / std::max<Picos>(load_time, 1), 1, 1000));
  times.load = alternate([&] { return passes.time_loads(timed_loads, 0, load); },
                         [&] { return passes.time_loads(timed_loads, count, load); });
  return times;
}

}  // namespace slip::flow
