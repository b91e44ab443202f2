#include "cli/lab/two_slots.hpp"

#include <algorithm>

namespace slip::cli {
namespace {
constexpr std::size_t kLayers = 4;
}

TwoSlots::TwoSlots(const Device& device, std::size_t bytes, const Work& add)
    : device_(device), add_(add), compute_(device.legacy_stream()), load_(device.stream(kNonBlocking)) {
  for (std::size_t k = 0; k < kLayers; ++k) {
    host_.push_back(device.alloc(bytes, MemoryKind::kPinned, fmt::format("weight {}", k)));
    std::ranges::fill(host_.back().host_write<float>(), static_cast<float>(1U << k));
  }
  for (Buffer& slot : slots_) slot = device.alloc(bytes, MemoryKind::kDevice, "slot");
  for (Buffer& data : data_) data = device.alloc(bytes, MemoryKind::kDevice, "data");
  input_ = device.alloc(bytes, MemoryKind::kPinned, "input");
  output_ = device.alloc(bytes, MemoryKind::kPinned, "output");
  std::ranges::fill(input_.host_write<float>(), 100.0F);
}

void TwoSlots::prepare() {
  std::ranges::fill(output_.host_write<float>(), 0.0F);
  device_.copy(data_[0], input_);
  device_.copy(slots_[0], host_[0]);
  device_.fill(slots_[1], 0);
  device_.sync();
}

void TwoSlots::add(std::size_t layer) const {
  static const std::array<Name, kLayers> kNames = {"A0", "A1", "A2", "A3"};
  compute_.launch(kVectorAdd,
                  {{data_[layer % 2], slots_[layer % 2]}, {data_[(layer + 1) % 2]}, {add_.pace}, kNames[layer]},
                  add_.cost);
}

// L(k) loads weight k+1.
void TwoSlots::load(std::size_t k) const {
  static const std::array<Name, kLayers - 1> kNames = {"L0", "L1", "L2"};
  load_.copy(slots_[(k + 1) % 2], host_[k + 1], kNames[k]);
}

// Each wait is directly before the op that needs it. If the layers share one event, the wait before L1 sees the record
// after A1 instead of the one after A0: correct, but later than needed (rule 54).
void TwoSlots::issue_three(bool shared, int without) const {
  Event before, computed, loaded;
  Event& first = shared ? computed : before;
  const auto wait = [&](StreamRef stream, const Event& event, int edge) {
    if (edge != without) stream.wait(event);
  };
  add(0);
  compute_.record(first);
  load(0);
  load_.record(loaded);
  wait(compute_, loaded, 1);
  add(1);
  compute_.record(computed);
  wait(load_, first, 4);
  load(1);
  load_.record(loaded);
  wait(compute_, loaded, 2);
  add(2);
  wait(load_, computed, 5);
  load(2);
  load_.record(loaded);
  wait(compute_, loaded, 3);
  add(3);
  compute_.copy(output_, data_[0], "output");
}

// Each wait directly follows its record, so the next record may reuse the event: the wait holds the earlier record.
void TwoSlots::issue_at_once(bool shared) const {
  Event one, two;
  Event& computed = one;
  Event& loaded = shared ? one : two;
  for (std::size_t k = 0; k + 1 < kLayers; ++k) {
    add(k);
    load(k);
    if (k + 2 < kLayers) {
      compute_.record(computed);
      load_.wait(computed);
    }
    load_.record(loaded);
    compute_.wait(loaded);
  }
  add(kLayers - 1);
  compute_.copy(output_, data_[0], "output");
}

bool TwoSlots::ok() const {
  return std::ranges::all_of(output_.host_read<float>(), [](float value) { return value == 115.0F; });
}

SlotsRun run_two_slots(const Bench& bench, EventScheme use, std::size_t bytes, const Work& add) {
  const Device device = bench.open({.compute_workers = 1});
  TwoSlots program(device, bytes, add);
  Run run = bench.measure(
      device, program.streams(), [&] { program.issue(use); }, [&] { program.prepare(); });
  return {std::move(run), program.ok()};
}

int wrong_without_edge(int seeds, int edge) {
  return wrong_in_random_orders(seeds, [&](const Device& device) {
    TwoSlots program(device, 4096, {});
    program.prepare();
    program.issue(EventScheme::kThree, edge);
    device.sync();
    return program.ok();
  });
}

}  // namespace slip::cli
