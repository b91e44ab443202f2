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

Loader::Loader(const Device& device, LoadedGroups groups, const LoadMemory& memory, Options options, Here here)
    : device_(device), all_(std::move(groups)), memory_(memory), options_(options) {
  const auto from_files = [](const WeightSource& source) { return source.files_ != nullptr; };
  const bool any_files = std::ranges::any_of(all_.sources, from_files);
  if (any_files && options.purpose == Purpose::kRun) {
    store::ReaderOptions reads;
    reads.threads = options.direct_reads ? 1 : 4;  // more threads would take cores from the kernels of a cpu device
    reads.between_loops = options.direct_reads;
    reader_ = std::make_unique<store::BlockReader>(reads, here);
  }
  const std::vector<Name> names = load_names(all_.groups, all_.values);
  std::uint64_t largest_read = 0, largest_copy = 0;
  bool reads_into_ring = false;
  for (std::uint32_t i = 0; i < all_.groups.size(); ++i) {
    Group group = make_group(i, here);
    group.name = names[i];
    group.read_name = fmt::format("read {}", names[i].text());
    if (group.path == LoadPath::kDecode) {
      group.copy_name = fmt::format("copy {}", names[i].text());
      group.name = fmt::format("decode {}", names[i].text());
    }
    groups_.push_back(std::move(group));
    if (all_.groups[i].resident) continue;
    const LoadPath path = groups_.back().path;
    if (path == LoadPath::kDecode) largest_copy = std::max(largest_copy, all_.groups[i].compressed_bytes);
    if (path == LoadPath::kReadThenCopy || (path == LoadPath::kDecode && is_on_disk(i)))
      largest_read = std::max(largest_read, all_.groups[i].stored_bytes());
    reads_into_ring = reads_into_ring || path == LoadPath::kReadIntoRing;
  }
  keep_in_pinned_memory(here);
  prepare_decoding(here);
  if (largest_read > 0) {
    read_memory_ = device.alloc(slots_bytes(kReadSlots, largest_read), MemoryKind::kPinned, "read slots", here);
    read_slots_ =
        std::make_unique<LoadSlots>(device, "reads from disk", read_memory_.range(), kReadSlots, largest_read, here);
  }
  if (largest_copy > 0 && memory_.slots.bytes > 0 && !options.direct_reads) {
    if (memory_.slots.bytes < slots_bytes(kDecodeSlots, largest_copy))
      base::fail(Code::kInvalidValue, here, "the plan has {} bytes of slots for compressed groups, and needs {}",
                 memory_.slots.bytes, slots_bytes(kDecodeSlots, largest_copy));
    device_slots_ = std::make_unique<LoadSlots>(device, "copies of compressed weights", memory_.slots, kDecodeSlots,
                                                largest_copy, here);
  }
  if (reads_into_ring) read_ahead_ = std::make_unique<ReadAhead>(device, here);
}

Loader::Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
               const LoadMemory& memory, Options options, Here here)
    : Loader(
          device,
          {plan.units,
           graph.values(),
           one_source(graph, plan, source, here),
           {},
           source ? PackedGroups::of(*source, plan.units, graph.values(), here) : std::vector<PackedGroups::Group>()},
          memory, options, here) {}

Loader::ReadAhead::ReadAhead(const Device& device, Here here)
    : stream(device.stream("free places", StreamFlags::kNonBlocking, 0, here)),
      free_places(device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, "free places", here)) {
  *free_places.host_write<std::uint32_t>(here).begin() = 0;
}

Loader::Group Loader::make_group(std::uint32_t index, Here here) const {
  const WeightGroup& planned = all_.groups[index];
  const WeightSource& source = all_.sources[index];
  Group group;
  if (planned.compressed_bytes > 0) {
    const PackedGroup* const packed = all_.packed.empty() ? nullptr : all_.packed[index].get();
    if (options_.purpose == Purpose::kRun && (!packed || packed->bytes != planned.compressed_bytes))
      base::fail(Code::kInvalidValue, here,
                 "the plan has weight '{}' compressed to {} bytes, and the source has it {}: plan with "
                 "WeightsOptions::compressed of this source",
                 value_of(planned.parts.front()).name, planned.compressed_bytes,
                 packed ? fmt::format("compressed to {}", packed->bytes) : "as it is");
    group.path = LoadPath::kDecode;
    return group;
  }
  if (source.packed_) return group;  // copied; fill() decodes it on the host
  if (source.files_) {
    const auto is_compressed = [&](const WeightGroup::Part& part) {
      return compressed_of(*source.files_, source.files_->at(value_of(part).name, here)) != nullptr;
    };
    if (std::ranges::any_of(planned.parts, is_compressed)) {  // fill() decodes them on the host
      if (planned.from_disk) group.path = LoadPath::kReadThenCopy;
      return group;
    }
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
      groups_[index].pinned = host_.back().slice(at, all_.groups[index].stored_bytes());
      if (proves) continue;
      fill_stored(index, runtime::address(groups_[index].pinned));
      at += aligned(all_.groups[index].stored_bytes());
    }
    members.clear();
    in_block = 0;
  };
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (all_.groups[i].resident) continue;
    if (groups_[i].path == LoadPath::kCopyParts) wrap_program_memory(i, here);
    if (groups_[i].path != LoadPath::kCopy && groups_[i].path != LoadPath::kDecode) continue;
    if (groups_[i].path == LoadPath::kDecode && is_on_disk(i)) continue;
    if (!proves && groups_[i].path == LoadPath::kDecode && all_.packed[i]->image.block) {
      groups_[i].pinned = all_.packed[i]->image;
      continue;
    }
    const std::uint64_t bytes = all_.groups[i].stored_bytes();
    if (!proves && in_block + bytes > kBlockBytes) close_block();
    members.push_back(i);
    in_block = proves ? std::max(in_block, bytes) : in_block + aligned(bytes);
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

bool Loader::is_on_disk(std::uint32_t index) const {
  return all_.groups[index].from_disk && (all_.sources[index].files_ || options_.purpose == Purpose::kProve);
}

void Loader::fill_stored(std::uint32_t index, std::byte* into) {
  if (groups_[index].path != LoadPath::kDecode) fill(index, into);
  else if (all_.packed[index]->image.block)
    std::memcpy(into, runtime::address(all_.packed[index]->image), all_.packed[index]->bytes);
  else read_packed(*all_.packed[index], *reader_, into);
}

// Bytes between the parts of a group are not written.
void Loader::fill(std::uint32_t index, std::byte* into) {
  if (!all_.packed.empty() && all_.packed[index] && all_.packed[index]->image.block)
    return unpack(*all_.packed[index], runtime::address(all_.packed[index]->image), into, {});
  for (const FilePart& part : groups_[index].parts)
    reader_->read(*part.file, part.offset, part.bytes, {into + part.at, part.bytes});
  if (!groups_[index].parts.empty()) return;
  for (const WeightGroup::Part& part : all_.groups[index].parts)
    PackedGroups::fill_part(all_.sources[index], value_of(part), part, {into + part.offset, part.bytes.bytes}, {});
}

// A launch for each part of a compressed group. In a proof without a source the parts are not known: one launch then.
void Loader::prepare_decoding(Here here) {
  std::uint64_t launches = 0;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].path != LoadPath::kDecode) continue;
    const PackedGroup* const packed = all_.packed.empty() ? nullptr : all_.packed[i].get();
    launches += packed ? packed->parts.size() : 1;
  }
  if (launches == 0) return;
  reports_ = device_.alloc(launches * sizeof(std::uint64_t), MemoryKind::kPinned, "reports of decoding", here);
  if (options_.purpose == Purpose::kRun) std::ranges::fill(reports_.host_write<std::uint64_t>(here), 0);
  std::uint64_t next = 0;
  const auto report = [&] { return reports_.slice(sizeof(std::uint64_t) * next++, sizeof(std::uint64_t)); };
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].path != LoadPath::kDecode) continue;
    const PackedGroup* const packed = all_.packed.empty() ? nullptr : all_.packed[i].get();
    std::vector<Decoding>& decodings = groups_[i].decodings;
    if (!packed) {
      decodings.push_back({.blocks_bytes = all_.groups[i].compressed_bytes,
                           .count = 0,
                           .bytes = all_.groups[i].bytes,
                           .report = report(),
                           .scalars = model::DecompressSizes{}.scalars()});
      continue;
    }
    for (const PackedPart& part : packed->parts)
      decodings.push_back({.blocks = part.blocks_offset(),
                           .blocks_bytes = part.blocks_bytes(),
                           .checks = part.offset,
                           .ends = part.ends_offset(),
                           .count = part.checks.size(),
                           .at = part.at,
                           .bytes = part.bytes,
                           .report = report(),
                           .scalars = part.sizes.scalars()});
  }
}

void Loader::check_decoded(Here here) const {
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    for (std::size_t part = 0; part < groups_[i].decodings.size(); ++part, ++next) {
      // relaxed: a caller that has waited for the decoding sees its report; another one sees what is there so far.
      const std::uint64_t word =
          std::atomic_ref(reinterpret_cast<std::uint64_t*>(runtime::address(reports_.range()))[next])
              .load(std::memory_order_relaxed);
      if (const std::optional<model::BlockReport> report = model::read_report(word))
        base::fail(Code::kParse, here, "{}: block {}: {}", all_.packed[i]->parts[part].what, report->block,
                   model::fault_text(report->fault));
    }
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
  if (read_slots_) streams.push_back(read_slots_->stream());
  if (device_slots_) streams.push_back(device_slots_->stream());
  if (read_ahead_) streams.push_back(read_ahead_->stream);
  return streams;
}

void Loader::fill_resident(Here here) {
  // Pinned memory of the program is copied from where it is.
  const auto in_place = [this](std::uint32_t i) {
    return groups_[i].path != LoadPath::kDecode && !all_.pinned.empty() && all_.pinned[i].block;
  };
  std::uint64_t staged_bytes = 0;
  for (std::uint32_t i = 0; i < all_.groups.size(); ++i) {
    const WeightGroup& group = all_.groups[i];
    if (group.resident && !in_place(i)) staged_bytes = std::max(staged_bytes, group.stored_bytes());
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
    const Range to = memory_.resident.slice(group.offset, group.stored_bytes());
    if (in_place(i)) {
      stream.copy(to, all_.pinned[i], groups_[i].name, here);
      continue;
    }
    copied[turn].sync(here);
    {
      const HostView<std::byte> view = staging[turn].host_write<std::byte>(here);
      fill_stored(i, view.begin());
    }
    stream.copy(to, staging[turn].slice(0, group.stored_bytes()), groups_[i].name, here);
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
    else fill_stored(target.group, address_of(target));
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
      read_slots_->issue(
          stream, all_.groups[index].bytes,
          [&](StreamRef reads, Range slot) { issue_read(reads, slot, index, group.read_name); },
          [&](Range slot) { stream.copy(to.slice(0, slot.bytes), slot, group.name); });
      break;
    case LoadPath::kDecode: issue_compressed(stream, to, index); break;
  }
}

// Only the decoding writes the ring, so only it waits for the ops that used the place before: `stream` does.
void Loader::issue_compressed(StreamRef stream, Range to, std::uint32_t index) {
  const Group& group = groups_[index];
  const WeightGroup& planned = all_.groups[index];
  const std::uint64_t bytes = planned.compressed_bytes;
  const auto decode = [&](Range packed) { issue_decode(stream, to, index, packed); };
  const auto read = [&](StreamRef reads, Range slot) { issue_read(reads, slot, index, group.read_name); };
  if (planned.resident) return decode(memory_.resident.slice(planned.offset, bytes));
  const bool on_disk = is_on_disk(index);
  if (!device_slots_) return on_disk ? read_slots_->issue(stream, bytes, read, decode) : decode(group.pinned);
  device_slots_->issue(
      stream, bytes,
      [&](StreamRef copies, Range slot) {
        const auto copy = [&](Range packed) { copies.copy(slot, packed, group.copy_name); };
        if (on_disk) read_slots_->issue(copies, bytes, read, copy);
        else copy(group.pinned);
      },
      decode);
}

void Loader::issue_decode(StreamRef stream, Range to, std::uint32_t index, Range packed) {
  for (const Decoding& one : groups_[index].decodings) {
    stream.launch(model::decompress_kernel(),
                  {.reads = {packed.slice(one.blocks, one.blocks_bytes), packed.slice(one.checks, 8 * one.count),
                             packed.slice(one.ends, 4 * one.count)},
                   .writes = {to.slice(one.at, one.bytes), one.report},
                   .scalars = one.scalars,
                   .name = groups_[index].name},
                  {.bytes = one.blocks_bytes + one.bytes});
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
  if (!files_ && !memory_ && !fill_ && !packed_)
    throw Error(Code::kInvalidValue, "this source of weights is empty", here);
  if (packed_) return static_cast<void>(PackedGroups::of(*this, make_weight_groups(graph), graph.values(), here));
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
