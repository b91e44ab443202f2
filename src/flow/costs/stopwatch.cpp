#include "flow/costs/stopwatch.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

namespace slip {
namespace {

constexpr Picos kMilli = 1'000'000'000;
constexpr Picos kBatch = 2 * kMilli;  // long enough that the gate's opening does not count
constexpr Picos kLong = 50 * kMilli;  // work that is measured less often
// What a gate may hold back: a full queue would hold the host, who is to open it. A GPU takes about a thousand
// launches; other devices count cells, of which an op has several.
constexpr int kMaxHeld = 128;
constexpr std::size_t kCellsOfOp = 32;
constexpr int kMaxInBatch = 64;

int room_behind_gate(const Device& device) {
  const std::size_t cells = device.options().queue_depth;
  return cells == 0 ? kMaxHeld : static_cast<int>(std::clamp<std::size_t>(cells / kCellsOfOp, 3, kMaxHeld));
}

int pieces(Picos wanted, Picos each, int most) {
  return static_cast<int>(std::clamp<Picos>(wanted / std::max<Picos>(each, 1), 1, most));
}

Picos median(std::vector<Picos> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

Picos between(const TimedEvent& begin, const TimedEvent& end) { return Picos{(end - begin).count()} * 1000; }

}  // namespace

// Opens when it goes, too: a stream held for ever would hold whoever frees its memory.
class Stopwatch::Gate {
 public:
  explicit Gate(Stopwatch& watch) : watch_(watch) { ++watch_.round_; }
  ~Gate() { raise(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void hold(StreamRef stream) const { stream.wait_value(watch_.word_, watch_.round_, "gate"); }
  void open() {
    // In virtual time nothing has been looked at yet: without this the gate would never have been seen closed.
    if (watch_.device_.info().virtual_time) static_cast<void>(watch_.main_.query());
    raise();
  }

 private:
  void raise() {
    // release: what the host wrote before is there for the work that the gate held
    std::atomic_ref(*static_cast<std::uint32_t*>(watch_.word_.native()))
        .store(watch_.round_, std::memory_order_release);
  }

  Stopwatch& watch_;
};

Stopwatch::Stopwatch(const Device& device)
    : device_(device),
      room_(room_behind_gate(device)),
      word_(device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, "gate")),
      main_(device.stream(StreamFlags::kNonBlocking)),
      beside_(device.stream(StreamFlags::kNonBlocking)) {
  word_.host_write<std::uint32_t>()[0] = 0;
}

Picos Stopwatch::time(const Issue& issue) {
  // Memory touched for the first time, code loaded. Not behind the gate: a GPU may wait for all of its work to load
  // code.
  issue(main_, 0);
  main_.sync();
  const Picos first = batch(issue, 1);
  const int count = pieces(kBatch, first, std::min(kMaxInBatch, room_));
  std::vector<Picos> times;
  for (int i = 0; i < (first > kLong ? 3 : 7); ++i) times.push_back(batch(issue, count) / count);
  return std::max<Picos>(median(std::move(times)), 1);
}

Picos Stopwatch::batch(const Issue& issue, int count) {
  Gate gate(*this);
  gate.hold(main_);
  const TimedEvent begin = main_.record_timed();
  for (int i = 0; i < count; ++i) issue(main_, i);
  const TimedEvent end = main_.record_timed();
  gate.open();
  main_.sync();
  return between(begin, end);
}

Picos Stopwatch::time_beside(const Work& main, const Work& beside) {
  // Twice as long as the main work alone: beside each other it may take longer, too.
  const Picos held = beside.time * (room_ - 2) / 2;
  const int count = pieces(std::min(kBatch, held), main.time, std::min(kMaxInBatch, room_));
  const int needed = pieces(2 * count * main.time, beside.time, room_ - 2) + 2;
  std::vector<Picos> times;
  for (int i = 0; i < 3; ++i) times.push_back(batch_beside(main.issue, count, beside.issue, needed) / count);
  return median(std::move(times));
}

Picos Stopwatch::batch_beside(const Issue& main, int main_count, const Issue& beside, int beside_count) {
  Gate gate(*this);
  gate.hold(beside_);
  gate.hold(main_);
  for (int i = 0; i < beside_count; ++i) beside(beside_, i);
  const TimedEvent begin = main_.record_timed();
  for (int i = 0; i < main_count; ++i) main(main_, i);
  const TimedEvent end = main_.record_timed();
  gate.open();
  main_.sync();
  beside_.sync();
  return between(begin, end);
}

}  // namespace slip
