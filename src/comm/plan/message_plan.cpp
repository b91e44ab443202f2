#include "comm/plan/message_plan.hpp"

#include <algorithm>

#include "comm/link/link.hpp"

namespace slip {
namespace {

// A message is sent in parts, and a piece of the plan begins so many of them on each link: half of what a link holds,
// for those of the piece before may still be under way. Both ranks count the same, so neither waits for room while the
// other does.
constexpr std::uint64_t kPartBytes = 512 << 10, kParts = LinkEnd::kDepth / 2;

std::uint64_t parts_of(const Parcel& parcel) {
  return std::max<std::uint64_t>((parcel.bytes + kPartBytes - 1) / kPartBytes, 1);
}

// Parts of the parcels before this one on its link.
std::uint64_t parts_before(std::span<const Parcel> parcels, std::size_t index) {
  std::uint64_t parts = 0;
  for (std::size_t i = 0; i < index; ++i) {
    if (parcels[i].rank == parcels[index].rank && parcels[i].out == parcels[index].out) parts += parts_of(parcels[i]);
  }
  return parts;
}

}  // namespace

MessagePlan::MessagePlan(std::span<const Parcel> parcels) : parcels_(parcels) {
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    const std::uint64_t parts = parts_before(parcels, i) + parts_of(parcels[i]);
    parcel_pieces_ = std::max(parcel_pieces_, (parts + kParts - 1) / kParts);
  }
}

Task MessagePlan::task_of(int channel) const {
  Task task = task_;
  task.formation = &formations_[static_cast<std::size_t>(channel)];
  task.channel = channel;
  task.channels = channels();
  return task;
}

void MessagePlan::write(int channel, std::uint64_t piece, Program& program) const {
  if (recipe_) recipe_->write(task_of(channel), piece, program);
  else write_parcels(piece, program);
}

void MessagePlan::write_parcels(std::uint64_t piece, Program& program) const {
  const std::uint64_t begin = piece * kParts, end = begin + kParts;
  for (std::size_t i = 0; i < parcels_.size(); ++i) {
    const Parcel& parcel = parcels_[i];
    const std::uint64_t before = parts_before(parcels_, i), parts = parts_of(parcel);
    for (std::uint64_t part = begin > before ? begin - before : 0; part < parts && before + part < end; ++part) {
      const std::uint64_t offset = part * kPartBytes, bytes = std::min(kPartBytes, parcel.bytes - offset);
      const Place place{Space::kAddress, 0, reinterpret_cast<std::uint64_t>(parcel.data) + offset};
      if (parcel.out) program.send(parcel.rank, place, bytes);
      else program.receive(parcel.rank, place, bytes);
      program.steps.back().begins = part == 0;
      program.steps.back().value = parcel.bytes;
    }
  }
  // Until those of the piece before are done, or all of them. A link is looked at once, with its last parcel.
  const bool last = piece + 1 == parcel_pieces_;
  for (std::size_t i = 0; i < parcels_.size(); ++i) {
    const Parcel& parcel = parcels_[i];
    const bool later = std::any_of(parcels_.begin() + static_cast<std::ptrdiff_t>(i) + 1, parcels_.end(),
                                   [&](const Parcel& one) { return one.rank == parcel.rank && one.out == parcel.out; });
    const std::uint64_t parts = parts_before(parcels_, i) + parts_of(parcel);
    if (later || (!last && parts <= begin)) continue;
    const std::uint64_t left = last ? 0 : std::min(parts, end) - begin;
    if (parcel.out) program.sent(parcel.rank, left);
    else program.received(parcel.rank, left);
  }
}

}  // namespace slip
