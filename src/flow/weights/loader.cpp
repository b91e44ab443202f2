#include "flow/weights/loader.hpp"

#include <algorithm>
#include <cstring>

#include "base/fail.hpp"
#include "model/folder.hpp"
#include "model/safetensors.hpp"
#include "runtime/core.hpp"

namespace slip::flow {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 30;  // of pinned memory: few large allocations

std::vector<WeightSource> one_source(const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
                                     Here here) {
  if (source) source->check(graph, here);
  return std::vector<WeightSource>(plan.groups.size(), source ? *source : WeightSource());
}

}  // namespace

bool is_host_memory(const Device& device) { return !device.info().name.starts_with("cuda"); }

store::ReaderOptions reader_options(bool direct_reads) {
  store::ReaderOptions options;
  options.threads = direct_reads ? 1 : 4;
  options.by_team = direct_reads;
  return options;
}

void wait_for_all(std::span<const StreamRef> streams) noexcept {
  for (const StreamRef stream : streams) {
    try {
      stream.sync();
    } catch (const Error&) {  // a destructor cannot throw; step(), begin() and sync() report such errors
    }
  }
}

Loader::Loader(const Device& device, LoadedGroups groups, const LoadMemory& memory, Options options, Here here)
    : device_(device), all_(std::move(groups)), memory_(memory), options_(options) {
  const auto from_files = [](const WeightSource& source) { return source.files_ != nullptr; };
  const bool any_files = std::ranges::any_of(all_.sources, from_files);
  const store::ReaderOptions reads = reader_options(options.direct_reads);
  if (any_files && options.purpose == Purpose::kRun) reader_ = std::make_unique<store::BlockReader>(reads, here);
  parts_.resize(all_.groups.size());
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
      largest_read = std::max(largest_read, slot_bytes(i));
    reads_into_ring = reads_into_ring || path == LoadPath::kReadIntoRing;
  }
  keep_in_pinned_memory(here);
  prepare_decoding(here);
  keep_tables(here);
  if (reads_into_ring)
    ring_reads_ = std::make_unique<ReadAhead>(
        device, parts_, reader_.get(),
        ReadAhead::Options{.stream = "free places", .memory = memory_.ring, .exact_places = options.exact_places},
        here);
  if (largest_read > 0) {
    const std::size_t slots = read_slots(largest_read);
    read_memory_ = device.alloc(slots_bytes(slots, largest_read), MemoryKind::kPinned, "read slots", here);
    read_slots_ =
        std::make_unique<LoadSlots>(device, "reads from disk", read_memory_.range(), slots, largest_read, here);
    if (reads_into_ring && reader_) slot_reader_ = std::make_unique<store::BlockReader>(reads, here);
    slot_reads_ = std::make_unique<ReadAhead>(
        device, parts_, slot_reader_ ? slot_reader_.get() : reader_.get(),
        ReadAhead::Options{
            .stream = "free read slots", .memory = read_memory_.range(), .exact_places = !options.direct_reads},
        here);
  }
  if (largest_copy > 0 && memory_.slots.bytes > 0 && !options.direct_reads) {
    if (memory_.slots.bytes < slots_bytes(kDecodeSlots, largest_copy))
      base::fail(ErrorCode::kInvalidValue, here, "the plan has {} bytes of slots for compressed groups, and needs {}",
                 memory_.slots.bytes, slots_bytes(kDecodeSlots, largest_copy));
    device_slots_ = std::make_unique<LoadSlots>(device, "copies of compressed weights", memory_.slots, kDecodeSlots,
                                                largest_copy, here);
  }
}

Loader::Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
               const LoadMemory& memory, Options options, Here here)
    : Loader(
          device,
          {plan.groups,
           graph.values(),
           one_source(graph, plan, source, here),
           {},
           source ? PackedGroups::of(*source, plan.groups, graph.values(), here) : std::vector<PackedGroups::Group>()},
          memory, options, here) {}

Loader::Group Loader::make_group(std::uint32_t index, Here here) {
  const WeightGroup& planned = all_.groups[index];
  const WeightSource& source = all_.sources[index];
  Group group;
  if (planned.compressed_bytes > 0) {
    const PackedGroup* const packed = packed_of(index);
    if (options_.purpose == Purpose::kRun && (!packed || packed->bytes != planned.compressed_bytes))
      base::fail(ErrorCode::kInvalidValue, here,
                 "the plan has weight '{}' compressed to {} bytes, and the source has it {}: plan with "
                 "WeightsOptions::compressed of this source (slip run --compress compresses a folder)",
                 value_of(planned.parts.front()).name, planned.compressed_bytes,
                 packed ? fmt::format("compressed to {}", packed->bytes) : "as it is");
    group.path = LoadPath::kDecode;
    if (!packed || packed->image.block) return group;
    std::uint64_t at = 0;
    for (const PackedPart& part : packed->parts) {
      const std::uint64_t bytes = part.blocks_bytes();
      if (!reads_blocks(index)) {
        parts_[index].push_back({part.file, part.file_offset, bytes, part.blocks_offset(), bytes});
        continue;
      }
      const std::uint64_t room = aligned(bytes + kLandingRoom);
      parts_[index].push_back({part.file, part.file_offset, bytes, at, room});
      at += room;
    }
    return group;
  }
  if (source.packed_) return group;  // kCopy: fill() decodes it on the host, into pinned memory
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
      parts_[index].push_back(
          {.file = &file_of(*source.files_, tensor, here),
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
  else {
    read_parts(index, into);
    finish_packed(*all_.packed[index], into);
  }
}

void Loader::read_parts(std::uint32_t index, std::byte* into) {
  for (const FilePart& part : parts_[index])
    reader_->read(*part.file, part.offset, part.bytes, {into + part.at, part.bytes});
}

// Bytes between the parts of a group are not written.
void Loader::fill(std::uint32_t index, std::byte* into) {
  if (const PackedGroup* const packed = packed_of(index); packed && packed->image.block)
    return unpack(*packed, runtime::address(packed->image), into, {});
  if (!parts_[index].empty()) return read_parts(index, into);
  for (const WeightGroup::Part& part : all_.groups[index].parts)
    PackedGroups::fill_part(all_.sources[index], value_of(part), part, {into + part.offset, part.bytes.bytes}, {});
}

// A launch for each part of a compressed group. In a proof without a source the parts are not known: one launch then.
void Loader::prepare_decoding(Here here) {
  std::vector<Decoding*> all;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].path != LoadPath::kDecode) continue;
    std::vector<Decoding>& decodings = groups_[i].decodings;
    if (const PackedGroup* const packed = packed_of(i)) {
      for (const PackedPart& part : packed->parts)
        decodings.push_back({.blocks = part.blocks_offset(),
                             .blocks_bytes = part.blocks_bytes(),
                             .checksums = part.offset,
                             .ends = part.ends_offset(),
                             .count = part.checksums.size(),
                             .at = part.at,
                             .bytes = part.bytes,
                             .scalars = part.sizes.scalars()});
    } else {
      decodings.push_back({.blocks_bytes = all_.groups[i].compressed_bytes,
                           .bytes = all_.groups[i].bytes,
                           .scalars = model::DecompressSizes{}.scalars()});
    }
    for (Decoding& one : decodings) all.push_back(&one);
  }
  if (all.empty()) return;
  Buffer& reports = decode_memory_.reports;
  reports = device_.alloc(all.size() * sizeof(std::uint64_t), MemoryKind::kPinned, "reports of decoding", here);
  if (options_.purpose == Purpose::kRun) std::ranges::fill(reports.host_write<std::uint64_t>(here), 0);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i]->report = reports.slice(sizeof(std::uint64_t) * i, sizeof(std::uint64_t));
}

std::uint64_t Loader::slot_bytes(std::uint32_t index) const {
  if (!reads_blocks(index)) return all_.groups[index].stored_bytes();
  const FilePart& last = parts_[index].back();
  return last.at + last.room_bytes;
}

void Loader::keep_tables(Here here) {
  std::uint64_t bytes = 0;
  const auto each = [&](const auto& act) {
    for (std::uint32_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].path != LoadPath::kDecode || !reads_blocks(i)) continue;
      for (std::size_t part = 0; part < groups_[i].decodings.size(); ++part)
        act(groups_[i].decodings[part], all_.packed[i]->parts[part]);
    }
  };
  each([&](const Decoding& one, const PackedPart&) { bytes += 16 * one.count; });
  if (bytes == 0) return;
  decode_memory_.tables = device_.alloc(bytes, MemoryKind::kPinned, "tables of compressed weights", here);
  std::uint64_t at = 0;
  each([&](Decoding& one, const PackedPart& part) {
    one.kept_checksums = decode_memory_.tables.slice(at, 8 * one.count);
    one.kept_ends = decode_memory_.tables.slice(at + 8 * one.count, 4 * one.count);
    at += 16 * one.count;
    if (options_.purpose == Purpose::kProve) return;
    std::memcpy(runtime::address(one.kept_checksums), part.checksums.data(), one.kept_checksums.bytes);
    std::memcpy(runtime::address(one.kept_ends), part.ends.data(), one.kept_ends.bytes);
  });
}

void Loader::check_decoded(Here here) const {
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    for (std::size_t part = 0; part < groups_[i].decodings.size(); ++part, ++next) {
      // relaxed: a caller that has waited for the decoding sees its report. No other data is read through the report.
      const std::uint64_t word =
          std::atomic_ref(reinterpret_cast<std::uint64_t*>(runtime::address(decode_memory_.reports.range()))[next])
              .load(std::memory_order_relaxed);
      if (const std::optional<model::BlockReport> report = model::read_report(word))
        base::fail(ErrorCode::kParse, here, "{}: block {}: {}", all_.packed[i]->parts[part].what, report->block,
                   model::fault_text(report->fault));
    }
  }
}

std::uint64_t Loader::shift(Range to, std::uint32_t index, std::size_t part_index) const {
  if (groups_[index].path != LoadPath::kReadIntoRing) return 0;
  return parts_[index][part_index].shift(runtime::address(to), options_.exact_places);
}

std::vector<StreamRef> Loader::streams() const {
  std::vector<StreamRef> streams;
  if (read_slots_) streams.push_back(read_slots_->stream());
  if (device_slots_) streams.push_back(device_slots_->stream());
  for (const ReadAhead* reads : {ring_reads_.get(), slot_reads_.get()})
    if (reads) streams.push_back(reads->stream());
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

// `used`: when it is complete, the place is free. The lambda is at most two pointers large, so that std::function
// stores it without an allocation.
void Loader::issue_read(StreamRef stream, Range to, std::uint32_t index, Name name, const Event* used) {
  // Where device memory is host memory the read is the load itself, so it runs on the engine of copies into the device.
  const bool loads = groups_[index].path == LoadPath::kReadIntoRing;
  ReadAhead& reads = loads ? *ring_reads_ : *slot_reads_;
  const ReadTarget target = reads.target_of(index, to);
  if (!parts_[index].empty()) reads.issue(target, used);
  const auto function = [this, target] { read(target); };
  static_assert(sizeof(function) <= 2 * sizeof(void*));
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

// Runs in the host function of a read.
void Loader::read(ReadTarget target) {
  const LoadPath path = groups_[target.group].path;
  ReadAhead& reads = path == LoadPath::kReadIntoRing ? *ring_reads_ : *slot_reads_;
  // A group without parts is compressed in its file and not in the plan: the host decodes it.
  if (parts_[target.group].empty()) return fill(target.group, reads.address_of(target));
  reads.read(target);
  if (path == LoadPath::kDecode && !reads_blocks(target.group))
    finish_packed(*all_.packed[target.group], reads.address_of(target));
}

void Loader::issue(StreamRef stream, Range to, std::uint32_t index, const Event* used) {
  const Group& group = groups_[index];
  switch (group.path) {
    case LoadPath::kCopy: stream.copy(to.slice(0, group.pinned.bytes), group.pinned, group.name); break;
    case LoadPath::kCopyParts:
      for (std::size_t i = 0; i < group.memory.size(); ++i)
        stream.copy(to.slice(all_.groups[index].parts[i].offset, group.memory[i].bytes), group.memory[i], group.name);
      break;
    case LoadPath::kReadIntoRing: issue_read(stream, to, index, group.name, used); break;
    case LoadPath::kReadThenCopy:
      read_slots_->issue(
          stream, all_.groups[index].bytes,
          [&](StreamRef reads, Range slot, const Event& emptied) {
            issue_read(reads, slot, index, group.read_name, &emptied);
          },
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
  const auto read = [&](StreamRef reads, Range slot, const Event& emptied) {
    issue_read(reads, slot, index, group.read_name, &emptied);
  };
  if (planned.resident) return decode(memory_.resident.slice(planned.offset, bytes));
  const bool on_disk = is_on_disk(index);
  if (!device_slots_)
    return on_disk ? read_slots_->issue(stream, slot_bytes(index), read, decode) : decode(group.pinned);
  device_slots_->issue(
      stream, bytes,
      [&](StreamRef copies, Range slot, const Event&) {
        const auto copy = [&](Range packed) { copies.copy(slot, packed, group.copy_name); };
        if (on_disk) read_slots_->issue(copies, bytes, read, copy);
        else copy(group.pinned);
      },
      decode);
}

// `packed`: the packed group or, if only blocks are read, the slot that they were read to.
void Loader::issue_decode(StreamRef stream, Range to, std::uint32_t index, Range packed) {
  const std::vector<Decoding>& decodings = groups_[index].decodings;
  for (std::size_t i = 0; i < decodings.size(); ++i) {
    const Decoding& one = decodings[i];
    Range blocks, checksums, ends;
    if (one.kept_checksums.block) {
      const FilePart& part = parts_[index][i];
      blocks = packed.slice(part.at + part.shift(runtime::address(packed), false), one.blocks_bytes);
      checksums = one.kept_checksums, ends = one.kept_ends;
    } else {
      blocks = packed.slice(one.blocks, one.blocks_bytes);
      checksums = packed.slice(one.checksums, 8 * one.count), ends = packed.slice(one.ends, 4 * one.count);
    }
    stream.launch(model::decompress_or_fail_kernel(),
                  {.reads = {blocks, checksums, ends},
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
    throw Error(ErrorCode::kInvalidValue, "this source of weights is empty", here);
  if (packed_) return static_cast<void>(PackedGroups::of(*this, make_weight_groups(graph), graph.values(), here));
  if (files_) return model::require_weights(graph, *files_, here);
  for (const GraphValue& weight : graph.values()) {
    if (weight.role != ValueRole::kWeight || !memory_) continue;
    const std::size_t bytes = memory_(weight).size();
    if (bytes != weight.bytes)
      base::fail(ErrorCode::kInvalidValue, here, "weight '{}' has {} bytes in memory, but {} {} takes {}", weight.name,
                 bytes, data_type_name(weight.type), shape_text(weight.shape), weight.bytes);
  }
}

}  // namespace slip
