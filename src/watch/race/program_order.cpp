#include "watch/race/program_order.hpp"

#include <algorithm>

namespace slip::watch {
namespace {
constexpr std::size_t kMaxSlotsForNeededEdges = 1024;
}  // namespace

ProgramOrder::HostState ProgramOrder::host_state() {
  if (issued_with_.clock) return issued_with_;
  const auto store = [](std::shared_ptr<const Clocks::Clock>& stored, const Clocks::Clock& present) {
    if (!stored || *stored != present) stored = std::make_shared<const Clocks::Clock>(present);
  };
  store(present_.clock, clocks_.host());
  if (fixes_) store(present_.fixed, fixes_->clocks.host());
  present_.steps = host_steps_;
  return present_;
}

Clocks::Point ProgramOrder::point_of(std::uint64_t stream, std::uint64_t position) {
  const Clocks::StreamSlot slot = clocks_.slot_of(stream);
  if (fixes_) fixes_->clocks.adopt(stream, slot);
  return slot.at(position);
}

Clocks::Point ProgramOrder::point_of(const TraceRecord& record) {
  if (record.stream == last_stream_) return last_slot_.at(record.position);
  // In a reused slot the order after the closed stream is implicit, so NeededEdges could not see which edges establish
  // it.
  if (needed_ && !needed_->gave_up() && clocks_.slots() > kMaxSlotsForNeededEdges) needed_->give_up();
  const bool fresh = needed_ && !needed_->gave_up();
  const Clocks::StreamSlot slot =
      fresh ? clocks_.slot_of(record.stream) : clocks_.slot_of(record.stream, record.device);
  if (fixes_) fixes_->clocks.adopt(record.stream, slot);
  std::vector<std::uint32_t>& slots = device_slots_[record.device];
  if (std::find(slots.begin(), slots.end(), slot.slot) == slots.end()) slots.push_back(slot.slot);
  last_stream_ = record.stream;
  last_slot_ = slot;
  return slot.at(record.position);
}

void ProgramOrder::begin_op(std::uint32_t slot) {
  const Clocks::Clock* before = &clocks_.present(slot);
  end_op({slot, 0});
  if (!needed_ || before == &clocks_.present(slot)) return;
  const bool late = issued_with_.clock != nullptr;
  needed_->add_edge(slot, {Clocks::kHostSlot, late ? issued_with_.steps : host_steps_},
                    late ? issued_with_.clock : std::make_shared<const Clocks::Clock>(clocks_.host()), false);
}

void ProgramOrder::end_op(Clocks::Point point) {
  if (issued_with_.clock) [[unlikely]] {
    clocks_.submit(point.slot, point.position, *issued_with_.clock);
    if (fixes_)
      fixes_->clocks.submit(point.slot, point.position, issued_with_.fixed ? *issued_with_.fixed : *issued_with_.clock);
    return;
  }
  clocks_.submit(point.slot, point.position);
  if (fixes_) fixes_->clocks.submit(point.slot, point.position);
}

void ProgramOrder::wait(std::uint32_t slot, Clocks::Point point) {
  if (fixes_) fixes_->clocks.wait(slot, point);
  if (!needed_) {
    clocks_.wait(slot, point);
    return;
  }
  auto clock = clocks_.clock_at(point);
  const bool implied = !clocks_.wait(slot, point);
  needed_->add_edge(slot, point, std::move(clock), implied);
}

void ProgramOrder::host_wait(Clocks::Point point) {
  if (fixes_) fixes_->clocks.host_wait(point);
  auto clock = needed_ ? clocks_.clock_at(point) : nullptr;
  clocks_.host_wait(point);
  // `implied` is false: a wait of the host for one stream is needed even if its waits for other streams order the same
  // ops.
  if (needed_) needed_->add_edge(Clocks::kHostSlot, point, std::move(clock), false);
}

// Waits for the whole stream: its last op, and the waits after that op.
void ProgramOrder::host_wait_all(std::uint32_t slot) {
  if (fixes_) fixes_->clocks.host_wait_all(slot);
  if (needed_) {
    const Clocks::Point end{slot, clocks_.end(slot)};
    needed_->add_edge(Clocks::kHostSlot, end, clocks_.present_clock(slot), false, true);
  }
  clocks_.host_wait_all(slot);
}

void ProgramOrder::host_sync(const TraceRecord& record) {
  if (record.whole_device) {
    for (const std::uint32_t slot : device_slots_[record.device]) host_wait_all(slot);
  } else {
    host_wait(awaited_by(record));
  }
  if (!needed_) return;
  needed_->host_waited(Clocks::kHostSlot, clocks_.host());
  needed_->add_op({Clocks::kHostSlot, ++host_steps_}, clocks_.host());
}

bool ProgramOrder::is_ordered(const Access& earlier, const Access& access, bool at_own_position) {
  const std::uint32_t slot = access.point.slot;
  if (earlier.point.slot == slot) return true;
  const bool before = clocks_.before(earlier.point, slot);
  if (needed_ && before) needed_->require_order(earlier.point, slot);
  if (before || slot == Clocks::kHostSlot) return before;
  // Within a stream, submitting an op and recording it are one atomic step, but not across streams. So the record of
  // another thread's op may arrive first, although that op comes after this one.
  return at_own_position && earlier.point.slot != Clocks::kHostSlot && clocks_.reaches(earlier.point, access.point);
}

}  // namespace slip::watch
