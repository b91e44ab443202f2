#include "flow/weights/loader.hpp"

#include <algorithm>
#include <cstring>

#include "base/fail.hpp"
#include "model/folder.hpp"
#include "model/safetensors.hpp"
#include "runtime/core.hpp"

namespace slip::flow {
namespace {

const Name kFreePlaceName("free place");  // made once: a Name looks up its text, and that allocates
constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 30;  // of pinned memory: few large allocations

std::vector<WeightSource> one_source(const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
                                     Here here) {
  if (source) source->check(graph, here);
  return std::vector<WeightSource>(plan.units.size(), source ? *source : WeightSource());
}

}  // namespace

bool is_host_memory(const Device& device) { return !device.info().name.starts_with("cuda"); }

StagedReads::StagedReads(const Device& device, std::uint64_t max_bytes, SlotMemory slots, Here here)
    : slot_stride_(slots == SlotMemory::kOwn ? aligned(max_bytes) : 0),
      stream_(device.stream("reads from disk", StreamFlags::kNonBlocking, 0, here)),
      memory_(device.alloc(slots == SlotMemory::kOwn ? kSlots * slot_stride_ : max_bytes, MemoryKind::kPinned,
                           "read slots", here)) {}

Loader::Loader(const Device& device, LoadedGroups groups, Range ring, Options options, Here here)
    : device_(device), all_(std::move(groups)), ring_(ring), options_(options) {
  const auto from_files = [](const WeightSource& source) { return source.files_ != nullptr; };
  const bool any_files = std::ranges::any_of(all_.sources, from_files);
  if (any_files && options.purpose == Purpose::kRun) {
    store::ReaderOptions reads;
    reads.threads = options.direct_reads ? 1 : 4;  // more threads would take cores from the kernels of a cpu device
    reads.between_loops = options.direct_reads;
    reader_ = std::make_unique<store::BlockReader>(reads, here);
  }
  const std::vector<Name> names = load_names(all_.groups, all_.values);
  std::uint64_t largest_read = 0;
  bool reads_into_ring = false;
  for (std::uint32_t i = 0; i < all_.groups.size(); ++i) {
    Group group = make_group(i, here);
    group.name = names[i];
    group.read_name = fmt::format("read {}", names[i].text());
    if (!all_.groups[i].resident) {
      if (group.path == LoadPath::kReadThenCopy) largest_read = std::max(largest_read, all_.groups[i].bytes);
      reads_into_ring = reads_into_ring || group.path == LoadPath::kReadIntoRing;
    }
    groups_.push_back(std::move(group));
  }
  keep_in_pinned_memory(here);
  if (largest_read > 0)
    staged_ = std::make_unique<StagedReads>(device, largest_read, StagedReads::SlotMemory::kOwn, here);
  if (reads_into_ring) read_ahead_ = std::make_unique<ReadAhead>(device, here);
}

Loader::Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
               Range ring, Options options, Here here)
    : Loader(device, {plan.units, graph.values(), one_source(graph, plan, source, here)}, ring, options, here) {}

Loader::ReadAhead::ReadAhead(const Device& device, Here here)
    : stream(device.stream("free places", StreamFlags::kNonBlocking, 0, here)),
      free_places(device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, "free places", here)) {
  *free_places.host_write<std::uint32_t>(here).begin() = 0;
}

Loader::Group Loader::make_group(std::uint32_t index, Here here) const {
  const WeightGroup& planned = all_.groups[index];
  const WeightSource& source = all_.sources[index];
  Group group;
  if (source.files_) {
    for (const WeightGroup::Part& part : planned.parts) {
      const TensorInfo& tensor = source.files_->at(value_of(part).name, here);
      const bool last = &part == &planned.parts.back();
      group.parts.push_back({.file = &file_of(*source.files_, tensor, here),
                             .offset = tensor.offset + part.bytes.offset,
                             .bytes = part.bytes.bytes,
                             .at = part.offset,
                             .room_bytes = (last ? planned.bytes + planned.room : (&part + 1)->offset) - part.offset});
    }
    if (options_.direct_reads) group.path = LoadPath::kReadIntoRing;
    else if (planned.from_disk) group.path = LoadPath::kReadThenCopy;
  } else if (source.memory_) {
    if (options_.direct_reads || source.memory_kind_ == MemoryKind::kPinned) group.path = LoadPath::kCopyParts;
  } else if (!source.fill_ && planned.from_disk) {  // a proof without a source
    group.path = LoadPath::kReadThenCopy;
  }
  return group;
}

// Allocates pinned host memory for the streamed groups that are copied, and fills it. Pinned memory of the program is
// used in place. A proof reads no bytes, so all groups share the same memory.
void Loader::keep_in_pinned_memory(Here here) {
  const bool proves = options_.purpose == Purpose::kProve;
  std::uint64_t in_block = 0;
  std::vector<std::uint32_t> members;
  const auto close_block = [&] {
    if (members.empty()) return;
    host_.push_back(device_.alloc(in_block, MemoryKind::kPinned, "weights in host memory", here));
    std::uint64_t at = 0;
    for (const std::uint32_t index : members) {
      groups_[index].pinned = host_.back().slice(at, all_.groups[index].bytes);
      if (proves) continue;
      fill(index, runtime::address(groups_[index].pinned));
      at += aligned(all_.groups[index].bytes);
    }
    members.clear();
    in_block = 0;
  };
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (all_.groups[i].resident) continue;
    if (groups_[i].path == LoadPath::kCopyParts) wrap_program_memory(i, here);
    if (groups_[i].path != LoadPath::kCopy) continue;
    if (!proves && in_block + all_.groups[i].bytes > kBlockBytes) close_block();
    members.push_back(i);
    in_block = proves ? std::max(in_block, all_.groups[i].bytes) : in_block + aligned(all_.groups[i].bytes);
  }
  close_block();
}

void Loader::wrap_program_memory(std::uint32_t index, Here here) {
  if (!all_.pinned.empty() && all_.pinned[index].block) {
    groups_[index].memory = {all_.pinned[index]};
    return;
  }
  for (const WeightGroup::Part& part : all_.groups[index].parts) {
    const GraphValue& weight = value_of(part);
    // The const_cast is safe: loads only read this memory.
    auto* data = const_cast<std::byte*>(all_.sources[index].memory_(weight).data()) + part.bytes.offset;
    host_.push_back(device_.wrap(data, part.bytes.bytes, MemoryKind::kPinned, weight.name, here));
    groups_[index].memory.push_back(host_.back());
  }
}

void Loader::fill(std::uint32_t index, std::byte* into) {
  for (const FilePart& part : groups_[index].parts)
    reader_->read(*part.file, part.offset, part.bytes, {into + part.at, part.bytes});
  const WeightSource& source = all_.sources[index];
  if (source.files_) return;
  for (const WeightGroup::Part& part : all_.groups[index].parts) {
    const GraphValue& weight = value_of(part);
    const std::span<std::byte> there(into + part.offset, part.bytes.bytes);
    if (source.fill_) source.fill_(weight, part.bytes.offset, there);
    else std::memcpy(there.data(), source.memory_(weight).data() + part.bytes.offset, there.size());
  }
}

// A direct read writes whole pages, at the same offset in a page as in the file. If the part has room for these pages,
// it is read there; otherwise the reader copies it to `place`.
store::Landing Loader::landing_of(const FilePart& part, std::byte* place) const {
  if (options_.exact_places) return {place, part.bytes};
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(place) % part.file->direct_alignment();
  if (skipped + store::BlockReader::room(*part.file, part.offset, part.bytes) > part.room_bytes)
    return {place, part.bytes};
  return {place + skipped, part.room_bytes - skipped};
}

std::uint64_t Loader::shift(Range to, std::uint32_t index, std::size_t part_index) const {
  if (groups_[index].path != LoadPath::kReadIntoRing) return 0;
  const FilePart& part = groups_[index].parts[part_index];
  std::byte* const place = runtime::address(to) + part.at;
  const store::Landing landing = landing_of(part, place);
  if (landing.capacity == part.bytes) return 0;
  return static_cast<std::uint64_t>(landing.memory - place) + store::BlockReader::lead(*part.file, part.offset);
}

std::vector<StreamRef> Loader::streams() const {
  std::vector<StreamRef> streams;
  if (staged_) streams.push_back(staged_->stream());
  if (read_ahead_) streams.push_back(read_ahead_->stream);
  return streams;
}

void Loader::fill_resident(Range resident, Here here) {
  // Pinned memory of the program is copied from where it is.
  const auto in_place = [this](std::uint32_t i) { return !all_.pinned.empty() && all_.pinned[i].block; };
  std::uint64_t staged_bytes = 0;
  for (std::uint32_t i = 0; i < all_.groups.size(); ++i) {
    const WeightGroup& group = all_.groups[i];
    if (group.resident && !in_place(i)) staged_bytes = std::max(staged_bytes, group.bytes);
  }
  const Stream stream = device_.stream(StreamFlags::kNonBlocking, 0, here);
  Buffer staging[2];
  if (staged_bytes > 0)
    for (Buffer& buffer : staging) buffer = device_.alloc(staged_bytes, MemoryKind::kPinned, "staging", here);
  Event copied[2];
  std::size_t turn = 0;
  for (std::uint32_t i = 0; i < all_.groups.size(); ++i) {
    const WeightGroup& group = all_.groups[i];
    if (!group.resident) continue;
    const Range to = resident.slice(group.offset, group.bytes);
    if (in_place(i)) {
      stream.copy(to, all_.pinned[i], groups_[i].name, here);
      continue;
    }
    copied[turn].sync(here);
    {
      const HostView<std::byte> view = staging[turn].host_write<std::byte>(here);
      fill(i, view.begin());
    }
    stream.copy(to, staging[turn].slice(0, group.bytes), groups_[i].name, here);
    stream.record(copied[turn], here);
    turn = 1 - turn;
  }
  stream.sync(here);
}

// The lambda is at most two pointers large, so that std::function stores it without an allocation.
void Loader::issue_read(StreamRef stream, Range to, std::uint32_t index, Name name) {
  const ReadTarget target = target_of(to, index);
  const auto function = [this, target] {
    if (groups_[target.group].path == LoadPath::kReadIntoRing) read_next_load(target);
    else fill(target.group, address_of(target));
  };
  static_assert(sizeof(function) <= 2 * sizeof(void*));
  // Where device memory is host memory the read is the load itself, so it runs on the engine of copies into the device.
  const bool loads = groups_[index].path == LoadPath::kReadIntoRing;
  const Range writes[] = {to};
  std::function<void()> call = function;
  slip::runtime::issue(*stream.state(Here::at()), {.kind = OpKind::kHost,
                                                   .engine = loads ? Engine::kCopyIn : Engine::kHost,
                                                   .name = name,
                                                   .here = Here::at(),
                                                   .writes = std::span<const Range>(writes),
                                                   .cost = {.bytes = to.bytes},
                                                   .host = &call});
}

void Loader::read_next_load(ReadTarget target) {
  ReadAhead& ahead = *read_ahead_;
  const std::uint64_t load = ahead.begun++;
  const std::vector<FilePart>& parts = groups_[target.group].parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (ahead.next.load == load && ahead.next.part == i) pass_part(target.group);
    const FilePart& part = parts[i];
    reader_->read({part.file, part.offset, part.bytes, landing_of(part, address_of(target) + part.at)},
                  [this] { return next_request(); });
  }
}

// The next part for the reader to begin, if its place in the ring is free.
std::optional<store::ReadRequest> Loader::next_request() {
  ReadAhead& ahead = *read_ahead_;
  // acquire: the counter is written after the op that used this place before has ended, so that op no longer reads it.
  // It is also written after the slot of the load in ahead.loads.
  const std::uint32_t free =
      std::atomic_ref(*reinterpret_cast<std::uint32_t*>(runtime::address(ahead.free_places.range())))
          .load(std::memory_order_acquire);
  // The counter wraps around; the difference is never as large as half of its range.
  if (static_cast<std::int32_t>(free - static_cast<std::uint32_t>(ahead.next.load)) <= 0) return std::nullopt;
  const std::optional<ReadTarget> target = ahead.loads.take(ahead.next.load);
  if (!target) return std::nullopt;
  const FilePart& part = groups_[target->group].parts[ahead.next.part];
  pass_part(target->group);
  return store::ReadRequest{part.file, part.offset, part.bytes, landing_of(part, address_of(*target) + part.at)};
}

// Makes the part after ahead.next, a part of `group`, the next one to request.
void Loader::pass_part(std::uint32_t group) {
  LoadPart& next = read_ahead_->next;
  const bool last = next.part + 1 == groups_[group].parts.size();
  next = last ? LoadPart{next.load + 1, 0} : LoadPart{next.load, next.part + 1};
}

// A sequence lock: `number` is 0 while `target` changes. One thread writes.
void Loader::IssuedLoads::put(std::uint64_t load, ReadTarget target) {
  Slot& slot = slots_[load % kSlots];
  slot.number.store(0, std::memory_order_relaxed);
  // The fence orders the 0 before the new target: a reader that sees the target also sees that the number changed.
  std::atomic_thread_fence(std::memory_order_release);
  slot.target.store(std::uint64_t{target.group} << 32 | target.at, std::memory_order_relaxed);
  slot.number.store(load + 1, std::memory_order_release);  // release: a reader of this number gets this target
}

std::optional<Loader::ReadTarget> Loader::IssuedLoads::take(std::uint64_t load) const {
  const Slot& slot = slots_[load % kSlots];
  if (slot.number.load(std::memory_order_acquire) != load + 1) return std::nullopt;
  const std::uint64_t target = slot.target.load(std::memory_order_relaxed);
  // The fence orders both loads: if the target is a later one, the second load of the number sees its 0, or more.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.number.load(std::memory_order_relaxed) != load + 1) return std::nullopt;
  return ReadTarget{static_cast<std::uint32_t>(target >> 32), static_cast<std::uint32_t>(target)};
}

std::byte* Loader::address_of(ReadTarget target) const {
  return runtime::address(whole_of(target.group)) + std::uint64_t{target.at} * kAlignment;
}

void Loader::issue(StreamRef stream, Range to, std::uint32_t index, const Event* used) {
  const Group& group = groups_[index];
  switch (group.path) {
    case LoadPath::kCopy: stream.copy(to.slice(0, group.pinned.bytes), group.pinned, group.name); break;
    case LoadPath::kCopyParts:
      for (std::size_t i = 0; i < group.memory.size(); ++i)
        stream.copy(to.slice(all_.groups[index].parts[i].offset, group.memory[i].bytes), group.memory[i], group.name);
      break;
    case LoadPath::kReadIntoRing:
      if (used) read_ahead_->stream.wait(*used);
      read_ahead_->loads.put(read_ahead_->issued, target_of(to, index));
      read_ahead_->stream.write_value(read_ahead_->free_places, static_cast<std::uint32_t>(++read_ahead_->issued),
                                      kFreePlaceName);
      issue_read(stream, to, index, group.name);
      break;
    case LoadPath::kReadThenCopy:
      staged_->issue(stream, to.slice(0, all_.groups[index].bytes), group.name,
                     [&](StreamRef reads, Range slot) { issue_read(reads, slot, index, group.read_name); });
      break;
  }
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

WeightSource WeightSource::files(const std::string& path, Here here) {
  WeightSource source;
  source.files_ = std::make_shared<const TensorFiles>(TensorFiles::open(path, here));
  return source;
}

WeightSource WeightSource::memory(Memory memory, MemoryKind kind) {
  WeightSource source;
  source.memory_ = std::move(memory);
  source.memory_kind_ = kind;
  return source;
}

WeightSource WeightSource::callback(Fill fill) {
  WeightSource source;
  source.fill_ = std::move(fill);
  return source;
}

void WeightSource::check(const Graph& graph, Here here) const {
  if (!files_ && !memory_ && !fill_) throw Error(Code::kInvalidValue, "this source of weights is empty", here);
  if (files_) return model::require_weights(graph, *files_, here);
  for (const GraphValue& weight : graph.values()) {
    if (weight.role != ValueRole::kWeight || !memory_) continue;
    const std::size_t bytes = memory_(weight).size();
    if (bytes != weight.bytes)
      base::fail(Code::kInvalidValue, here, "weight '{}' has {} bytes in memory, but {} {} takes {}", weight.name,
                 bytes, data_type_name(weight.type), shape_text(weight.shape), weight.bytes);
  }
}

}  // namespace slip
