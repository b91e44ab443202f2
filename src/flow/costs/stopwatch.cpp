#include <algorithm>
#include <atomic>
#include <vector>

#include "base/sync.hpp"
#include "flow/costs/measuring.hpp"

namespace slip::flow {
namespace {

constexpr Picos kBatch = 2 * kMilli;  // of work; long enough that the time to open the gate (class Gate) is negligible
constexpr Picos kLong = 50 * kMilli;  // longer work is measured in fewer batches
// Maximum number of pieces of work that are queued behind a closed gate. A full queue would block the host thread,
// which then could not open the gate. The queue of a GPU holds about a thousand launches. The queues of other devices
// hold cells (DeviceOptions::queue_depth), of which a piece takes several.
constexpr int kMaxHeld = 128;
constexpr std::size_t kCellsOfOp = 32;  // an estimate for one piece of work
constexpr int kMaxInBatch = 64;

int room_behind_gate(const Device& device) {
  const std::size_t cells = device.options().queue_depth;
  return cells == 0 ? kMaxHeld : static_cast<int>(std::clamp<std::size_t>(cells / kCellsOfOp, 3, kMaxHeld));
}

int pieces(Picos wanted, Picos each, int max) {
  return static_cast<int>(std::clamp<Picos>(wanted / std::max<Picos>(each, 1), 1, max));
}

Picos median(std::vector<Picos> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

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
  const Picos held = beside.time * (room_ - 2) / 2;
  const int count = pieces(std::min(kBatch, held), main.time, std::min(kMaxInBatch, room_));
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

}  // namespace slip::flow
