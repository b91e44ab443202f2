#include "flow/weights/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "flow/weights/step.hpp"
#include "flow/weights/weight_groups.hpp"
#include "model/safetensors.hpp"
#include "runtime/core.hpp"
#include "slip/runner.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 30;  // of pinned memory: few large blocks, not many small

// Device memory is memory of the process: a read can go right there.
bool is_host_memory(const Device& device) { return !device.info().name.starts_with("cuda"); }

}  // namespace

Loader::Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource& source,
               Range ring, Here here)
    : device_(device), graph_(graph), plan_(plan), source_(source), ring_(ring) {
  source.check(graph, here);
  if (source.files_) {
    ReaderOptions options;
    // Threads of its own would take cores from the kernels of a cpu device.
    options.threads = is_host_memory(device) ? 1 : 4;
    options.between_loops = is_host_memory(device);
    reader_ = std::make_unique<BlockReader>(options, here);
  }
  const std::vector<Name> names = load_names(plan, graph);
  std::uint64_t largest_read = 0;
  for (std::uint32_t i = 0; i < plan.units.size(); ++i) {
    const WeightUnit& planned = plan.units[i];
    Unit unit;
    unit.name = names[i];
    unit.read_name = fmt::format("read {}", names[i].text());
    if (source.files_) {
      for (const WeightUnit::Part& part : planned.parts) {
        const TensorInfo& tensor = source.files_->at(graph[part.bytes.value].name, here);
        unit.parts.push_back(
            {&file_of(*source.files_, tensor, here), tensor.offset + part.bytes.offset, part.bytes.bytes, part.offset});
        const bool last = &part == &planned.parts.back();
        unit.parts.back().room = (last ? planned.bytes + planned.room : (&part + 1)->offset) - part.offset;
      }
      if (is_host_memory(device)) unit.way = Way::kRead;
      else if (planned.from_disk) unit.way = Way::kReadCopy;
      if (unit.way == Way::kReadCopy && !planned.resident) largest_read = std::max(largest_read, planned.bytes);
    } else if (source.memory_ && (is_host_memory(device) || source.memory_kind_ == MemoryKind::kPinned)) {
      unit.way = Way::kCopyParts;
    }
    units_.push_back(std::move(unit));
  }
  keep_in_pinned_memory(here);
  if (largest_read > 0) {
    reads_ = std::make_unique<Stream>(device.stream("reads from disk", StreamFlags::kNonBlocking, 0, here));
    slot_bytes_ = aligned(largest_read);
    slots_ = device.alloc(kSlots * slot_bytes_, MemoryKind::kPinned, "read slots", here);
  }
  if (reader_ && is_host_memory(device) && !plan.loads.empty()) {
    free_ = device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, "loads that have their place", here);
    *free_.host_write<std::uint32_t>(here).begin() = 0;
    places_ = std::make_unique<Stream>(device.stream("free places", StreamFlags::kNonBlocking, 0, here));
  }
}

Loader::~Loader() = default;

// Streamed units that have their home in host memory. Wrapped memory of the program is taken where it lies.
void Loader::keep_in_pinned_memory(Here here) {
  std::uint64_t in_block = 0;
  std::vector<std::uint32_t> members;
  const auto close_block = [&] {
    if (members.empty()) return;
    host_.push_back(device_.alloc(in_block, MemoryKind::kPinned, "weights in host memory", here));
    std::uint64_t at = 0;
    for (const std::uint32_t index : members) {
      units_[index].pinned = host_.back().slice(at, plan_.units[index].bytes);
      fill(index, address(units_[index].pinned));
      at += aligned(plan_.units[index].bytes);
    }
    members.clear();
    in_block = 0;
  };
  for (std::uint32_t i = 0; i < units_.size(); ++i) {
    if (plan_.units[i].resident) continue;
    if (units_[i].way == Way::kCopyParts) {
      for (const WeightUnit::Part& part : plan_.units[i].parts) {
        const std::span<const std::byte> bytes = source_.memory_(graph_[part.bytes.value]);
        // Never written: a plan's loads only read it.
        auto* data = const_cast<std::byte*>(bytes.data()) + part.bytes.offset;
        host_.push_back(device_.wrap(data, part.bytes.bytes, MemoryKind::kPinned, graph_[part.bytes.value].name, here));
        units_[i].memory.push_back(host_.back());
      }
    } else if (units_[i].way == Way::kCopy) {
      if (in_block + plan_.units[i].bytes > kBlockBytes) close_block();
      members.push_back(i);
      in_block += aligned(plan_.units[i].bytes);
    }
  }
  close_block();
}

void Loader::fill(std::uint32_t index, std::byte* into) {
  for (const FilePart& part : units_[index].parts)
    reader_->read(*part.file, part.offset, part.bytes, {into + part.at, part.bytes});
  if (source_.files_) return;
  for (const WeightUnit::Part& part : plan_.units[index].parts) {
    const GraphValue& weight = graph_[part.bytes.value];
    const std::span<std::byte> there(into + part.offset, part.bytes.bytes);
    if (source_.fill_) source_.fill_(weight, part.bytes.offset, there);
    else std::memcpy(there.data(), source_.memory_(weight).data() + part.bytes.offset, there.size());
  }
}

// Direct reads write whole pages: with room for these a part lies in them as it does in the file.
Landing Loader::landing_of(const FilePart& part, std::byte* place) {
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(place) % part.file->direct_alignment();
  if (skipped + BlockReader::room(*part.file, part.offset, part.bytes) > part.room) return {place, part.bytes};
  return {place + skipped, part.room - skipped};
}

std::uint64_t Loader::shift(Range to, std::uint32_t index, std::size_t part_index) const {
  if (units_[index].way != Way::kRead) return 0;
  const FilePart& part = units_[index].parts[part_index];
  std::byte* const place = address(to) + part.at;
  const Landing landing = landing_of(part, place);
  if (landing.capacity == part.bytes) return 0;
  return static_cast<std::uint64_t>(landing.memory - place) + BlockReader::lead(*part.file, part.offset);
}

void Loader::fill_resident(const Buffer& resident, Here here) {
  std::uint64_t largest = 0;
  for (const WeightUnit& unit : plan_.units) largest = unit.resident ? std::max(largest, unit.bytes) : largest;
  if (largest == 0) return;
  const Stream stream = device_.stream(StreamFlags::kNonBlocking, 0, here);
  Buffer staging[2];
  for (Buffer& buffer : staging) buffer = device_.alloc(largest, MemoryKind::kPinned, "staging", here);
  Event copied[2];
  std::size_t turn = 0;
  for (std::uint32_t i = 0; i < plan_.units.size(); ++i) {
    const WeightUnit& unit = plan_.units[i];
    if (!unit.resident) continue;
    copied[turn].sync(here);
    {
      const HostView<std::byte> view = staging[turn].host_write<std::byte>(here);
      fill(i, view.begin());
    }
    stream.copy(resident.slice(unit.offset, unit.bytes), staging[turn].slice(0, unit.bytes), units_[i].name, here);
    stream.record(copied[turn], here);
    turn = 1 - turn;
  }
  stream.sync(here);
}

// The function is two words long, so that it needs no memory of its own.
void Loader::read_in(StreamRef stream, Range to, std::uint32_t index, Name name) {
  const Place place{index, static_cast<std::uint32_t>(to.offset / kAlignment)};
  const auto function = [this, place] {
    if (units_[place.unit].way == Way::kRead) read_next_load(place);
    else fill(place.unit, place_of(place));
  };
  static_assert(sizeof(function) <= 2 * sizeof(void*));
  // Where device memory is host memory the read is the load itself, so it runs on the engine of copies into the device.
  const bool loads = units_[index].way == Way::kRead;
  const Range writes[] = {to};
  std::function<void()> call = function;
  slip::issue(*stream.state(Here::at()), {.kind = OpKind::kHost,
                                          .engine = loads ? Engine::kCopyIn : Engine::kHost,
                                          .name = name,
                                          .here = Here::at(),
                                          .writes = std::span<const Range>(writes),
                                          .cost = {.bytes = to.bytes},
                                          .host = &call});
}

void Loader::read_next_load(Place place) {
  const std::uint64_t load = begun_++;
  const std::vector<FilePart>& parts = units_[place.unit].parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (ahead_.load == load && ahead_.part == i) pass(ahead_);
    const FilePart& part = parts[i];
    reader_->read({part.file, part.offset, part.bytes, landing_of(part, place_of(place) + part.at)},
                  [this] { return next_request(); });
  }
}

// What is read next but one, if its place is free.
std::optional<ReadRequest> Loader::next_request() {
  // acquire: what used the place before has ended.
  const std::uint32_t free =
      std::atomic_ref(*reinterpret_cast<std::uint32_t*>(address(free_.range()))).load(std::memory_order_acquire);
  // The word wraps around; it is never that far away.
  if (static_cast<std::int32_t>(free - static_cast<std::uint32_t>(ahead_.load)) <= 0) return std::nullopt;
  const WeightLoad& load = plan_.loads[ahead_.load % plan_.loads.size()];
  const FilePart& part = units_[load.unit].parts[ahead_.part];
  pass(ahead_);
  return ReadRequest{part.file, part.offset, part.bytes, landing_of(part, address(ring_) + load.offset + part.at)};
}

// The next to ask for is the one behind this.
void Loader::pass(LoadPart part) {
  const std::uint32_t unit = plan_.loads[part.load % plan_.loads.size()].unit;
  const bool last = part.part + 1 == units_[unit].parts.size();
  ahead_ = last ? LoadPart{part.load + 1, 0} : LoadPart{part.load, part.part + 1};
}

std::byte* Loader::place_of(Place place) const {
  Range whole = units_[place.unit].way == Way::kRead ? ring_ : slots_.range();
  return address(whole) + std::uint64_t{place.at} * kAlignment;
}

void Loader::issue(StreamRef stream, Range to, std::uint32_t index, const Event* used) {
  const Unit& unit = units_[index];
  switch (unit.way) {
    case Way::kCopy: stream.copy(to.slice(0, unit.pinned.bytes), unit.pinned, unit.name); break;
    case Way::kCopyParts:
      for (std::size_t i = 0; i < unit.memory.size(); ++i)
        stream.copy(to.slice(plan_.units[index].parts[i].offset, unit.memory[i].bytes), unit.memory[i], unit.name);
      break;
    case Way::kRead:
      if (used) places_->wait(*used);
      places_->write_value(free_, ++issued_, "free place");
      read_in(stream, to, index, unit.name);
      break;
    case Way::kReadCopy: {
      const std::size_t turn = next_slot_++ % kSlots;
      Slot& slot = slot_events_[turn];
      const Range staged = slots_.slice(turn * slot_bytes_, plan_.units[index].bytes);
      reads_->wait(slot.copied);
      read_in(*reads_, staged, index, unit.read_name);
      reads_->record(slot.read);
      stream.wait(slot.read);
      stream.copy(to.slice(0, staged.bytes), staged, unit.name);
      stream.record(slot.copied);
      break;
    }
  }
}

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
  for (const GraphValue& weight : graph.values()) {
    if (weight.role != ValueRole::kWeight) continue;
    if (memory_) {
      const std::size_t bytes = memory_(weight).size();
      if (bytes != weight.bytes)
        throw Error(Code::kInvalidValue,
                    fmt::format("weight '{}' has {} bytes in memory, but {} {} takes {}", weight.name, bytes,
                                data_type_name(weight.type), shape_text(weight.shape), weight.bytes),
                    here);
    }
    if (!files_) continue;
    const TensorInfo& tensor = files_->at(weight.name, here);
    if (tensor.type != weight.type || tensor.shape != weight.shape)
      throw Error(Code::kInvalidValue,
                  fmt::format("weight '{}' is {} {} in the graph, but {} {} in '{}'", weight.name,
                              data_type_name(weight.type), shape_text(weight.shape), data_type_name(tensor.type),
                              shape_text(tensor.shape), files_->paths()[tensor.file]),
                  here);
  }
}

}  // namespace slip
