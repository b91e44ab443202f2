#include "flow/weights/read_ahead.hpp"

#include "runtime/core.hpp"

namespace slip::flow {
namespace {

const Name kFreePlaceName("free place");  // made once: a Name looks up its text, and that allocates

}  // namespace

store::Destination FilePart::destination(std::byte* place, bool exact) const {
  if (exact) return {place, bytes};
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(place) % file->direct_alignment();
  if (skipped + store::BlockReader::room(*file, offset, bytes) > room_bytes) return {place, bytes};
  return {place + skipped, room_bytes - skipped};
}

std::uint64_t FilePart::shift(std::byte* group, bool exact) const {
  std::byte* const place = group + at;
  const store::Destination to = destination(place, exact);
  if (to.capacity == bytes) return 0;
  return static_cast<std::uint64_t>(to.memory - place) + store::BlockReader::lead(*file, offset);
}

ReadAhead::ReadAhead(const Device& device, const std::vector<std::vector<FilePart>>& parts, store::BlockReader* reader,
                     Options options, Here here)
    : parts_(parts),
      reader_(reader),
      options_(options),
      stream_(device.stream(options.stream, StreamFlags::kNonBlocking, 0, here)),
      free_places_(device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, options.stream.text(), here)) {
  *free_places_.host_write<std::uint32_t>(here).begin() = 0;
}

void ReadAhead::issue(ReadTarget target, const Event* used) {
  if (used) stream_.wait(*used);
  loads_.put(issued_, target);
  stream_.write_value(free_places_, static_cast<std::uint32_t>(++issued_), kFreePlaceName);
}

void ReadAhead::read(ReadTarget target) {
  const std::uint64_t load = begun_++;
  const std::vector<FilePart>& parts = parts_[target.group];
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (next_.load == load && next_.part == i) pass_part(target.group);
    reader_->read(request(parts[i], target), [this] { return next_request(); });
  }
}

std::byte* ReadAhead::address_of(ReadTarget target) const {
  return runtime::address(options_.memory) + std::uint64_t{target.at} * kAlignment;
}

// The next part for the reader to begin, if the device no longer uses the memory that it goes to.
std::optional<store::ReadRequest> ReadAhead::next_request() {
  // acquire: the counter is written after the op that used this place before has ended, so that op no longer reads it.
  // It is also written after the slot of the load in loads_.
  const std::uint32_t free = std::atomic_ref(*reinterpret_cast<std::uint32_t*>(runtime::address(free_places_.range())))
                                 .load(std::memory_order_acquire);
  // The counter wraps around; the difference is never as large as half of its range.
  if (static_cast<std::int32_t>(free - static_cast<std::uint32_t>(next_.load)) <= 0) return std::nullopt;
  const std::optional<ReadTarget> target = loads_.take(next_.load);
  if (!target) return std::nullopt;
  const FilePart& part = parts_[target->group][next_.part];
  pass_part(target->group);
  return request(part, *target);
}

// Makes the part after next_, a part of `group`, the next one to request.
void ReadAhead::pass_part(std::uint32_t group) {
  const bool last = next_.part + 1 == parts_[group].size();
  next_ = last ? LoadPart{next_.load + 1, 0} : LoadPart{next_.load, next_.part + 1};
}

// A sequence lock: `number` is 0 while `target` changes. One thread writes.
void ReadAhead::IssuedLoads::put(std::uint64_t load, ReadTarget target) {
  Slot& slot = slots_[load % kSlots];
  slot.number.store(0, std::memory_order_relaxed);
  // The fence orders the 0 before the new target: a reader that sees the target also sees that the number changed.
  std::atomic_thread_fence(std::memory_order_release);
  slot.target.store(std::uint64_t{target.group} << 32 | target.at, std::memory_order_relaxed);
  slot.number.store(load + 1, std::memory_order_release);  // release: a reader of this number gets this target
}

std::optional<ReadTarget> ReadAhead::IssuedLoads::take(std::uint64_t load) const {
  const Slot& slot = slots_[load % kSlots];
  if (slot.number.load(std::memory_order_acquire) != load + 1) return std::nullopt;
  const std::uint64_t target = slot.target.load(std::memory_order_relaxed);
  // The fence orders the reads of `target` and `number`. If another put() has written the target, the second read of
  // the number sees the 0 that this put() stored before, or a later number.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.number.load(std::memory_order_relaxed) != load + 1) return std::nullopt;
  return ReadTarget{static_cast<std::uint32_t>(target >> 32), static_cast<std::uint32_t>(target)};
}

}  // namespace slip::flow
