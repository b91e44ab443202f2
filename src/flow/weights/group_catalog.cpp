#include "flow/weights/group_catalog.hpp"

#include "base/fail.hpp"
#include "flow/weights/weight_groups.hpp"
#include "runtime/core.hpp"

namespace slip::flow {

WeightGroup group_of(const std::vector<GraphValue>& parts, std::size_t first_value) {
  WeightGroup group;
  for (const GraphValue& part : parts) {
    const Value value{static_cast<std::uint32_t>(first_value + group.parts.size())};
    const std::uint64_t offset = aligned(group.bytes);
    group.parts.push_back({{value, 0, part.bytes}, offset});
    group.bytes = offset + part.bytes;
  }
  return group;
}

GroupCatalog::GroupCatalog(const std::vector<StreamedGroup>& groups, Here here) {
  if (groups.empty()) throw Error(ErrorCode::kInvalidValue, "a streamer without groups of weights", here);
  for (const StreamedGroup& group : groups) {
    const auto index = static_cast<std::uint32_t>(groups_.size());
    if (group.name.empty()) base::fail(ErrorCode::kInvalidValue, here, "group {} of the streamer has no name", index);
    if (!by_name_.emplace(group.name, index).second)
      base::fail(ErrorCode::kInvalidValue, here, "two groups of the streamer have the name '{}'", group.name);
    const WeightGroup& made = groups_.emplace_back(group_of(group.source.parts_, values_.size()));
    for (const GraphValue& part : group.source.parts_) {
      values_.push_back(part);
      if (part.name.empty()) values_.back().name = group.name;
    }
    if (made.bytes == 0) base::fail(ErrorCode::kInvalidValue, here, "group '{}' has no bytes", group.name);
    names_.push_back(group.name);
    sources_.push_back(group.source.source_);
    pinned_.push_back(group.source.pinned_);
  }
  packed_.resize(groups_.size());
}

void GroupCatalog::compress(const Device& device, bool all, Here here) {
  std::vector<std::uint32_t> others;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    packed_[i] = PackedGroups::in_memory(sources_[i]);
    if (!packed_[i]) packed_[i] = PackedGroups::in_files(sources_[i], groups_[i], values_, here);
    if (!packed_[i] && all) others.push_back(i);
  }
  if (others.empty()) return;
  std::vector<WeightGroup> wanted;
  std::vector<const WeightSource*> sources;
  for (const std::uint32_t i : others) {
    wanted.push_back(groups_[i]);
    sources.push_back(&sources_[i]);
  }
  own_packed_ = std::make_unique<const PackedGroups>(device, wanted, values_, sources, here);
  for (std::size_t i = 0; i < others.size(); ++i) packed_[others[i]] = own_packed_->groups()[i];
}

std::uint32_t GroupCatalog::find(std::string_view name, Here here) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  base::fail(ErrorCode::kInvalidValue, here, "the streamer has no group '{}'; it has {} groups, from '{}' to '{}'",
             name, names_.size(), names_.front(), names_.back());
}

void GroupCatalog::check(std::uint32_t group, Here here) const {
  if (group >= names_.size())
    base::fail(ErrorCode::kInvalidValue, here, "the streamer has no group {}: it has {} groups", group, names_.size());
}

}  // namespace slip::flow

namespace slip {

namespace {

// A group of one part without a name: the group's name is used.
GraphValue nameless(DataType type, std::uint64_t bytes, Here here) {
  if (bytes % bytes_of(type) != 0)
    base::fail(ErrorCode::kInvalidValue, here, "a group of {} bytes is not a whole number of {} elements", bytes,
               data_type_name(type));
  return {.name = "", .type = type, .shape = {bytes / bytes_of(type)}, .bytes = bytes};
}

}  // namespace

GroupSource GroupSource::pinned(Range memory, Here here) { return pinned(memory, DataType::kU8, here); }
GroupSource GroupSource::memory(std::span<const std::byte> bytes, Here here) {
  return memory(bytes, DataType::kU8, here);
}
GroupSource GroupSource::callback(std::uint64_t bytes, Fill fill, Here here) {
  return callback(bytes, DataType::kU8, std::move(fill), here);
}

GroupSource GroupSource::pinned(Range memory, DataType type, Here here) {
  if (!memory.block || memory.bytes == 0)
    throw Error(ErrorCode::kInvalidValue, "a group of weights of no memory", here);
  const std::byte* const data = runtime::address(memory);
  GroupSource source;
  source.source_ = WeightSource::memory(
      [data, bytes = memory.bytes](const GraphValue&) { return std::span<const std::byte>(data, bytes); },
      MemoryKind::kPinned);
  source.parts_ = {nameless(type, memory.bytes, here)};
  source.pinned_ = memory;
  return source;
}

GroupSource GroupSource::memory(std::span<const std::byte> memory, DataType type, Here here) {
  if (memory.empty()) throw Error(ErrorCode::kInvalidValue, "a group of weights of no memory", here);
  GroupSource source;
  source.source_ = WeightSource::memory([memory](const GraphValue&) { return memory; });
  source.parts_ = {nameless(type, memory.size(), here)};
  return source;
}

GroupSource GroupSource::tensors(const WeightSource& files, const std::vector<std::string>& names, Here here) {
  if (!files.files_)
    throw Error(ErrorCode::kInvalidValue, "tensors of a source that is not WeightSource::files: there are none", here);
  GroupSource source;
  source.source_ = files;
  for (const std::string& name : names) {
    const TensorInfo& tensor = files.files_->at(name, here);
    source.parts_.push_back(
        {.name = name, .type = tensor.type, .shape = tensor.shape, .role = ValueRole::kWeight, .bytes = tensor.bytes});
  }
  return source;
}

GroupSource GroupSource::callback(std::uint64_t bytes, DataType type, Fill fill, Here here) {
  if (!fill || bytes == 0)
    throw Error(ErrorCode::kInvalidValue, "a group of weights of 0 bytes, or without a function", here);
  GroupSource source;
  source.source_ = WeightSource::callback([fill = std::move(fill)](const GraphValue&, std::uint64_t offset,
                                                                   std::span<std::byte> into) { fill(offset, into); });
  source.parts_ = {nameless(type, bytes, here)};
  return source;
}

GroupSource GroupSource::compressed(const Device& device, const GroupSource& from, Here here) {
  if (from.compressed_bytes() > 0) return from;
  GroupSource made;
  made.parts_ = from.parts_;
  made.source_ = flow::PackedGroups::source_of(
      std::make_shared<const flow::PackedGroups>(device, std::vector<WeightGroup>{flow::group_of(from.parts_, 0)},
                                                 from.parts_, std::vector<const WeightSource*>{&from.source_}, here));
  return made;
}

std::uint64_t GroupSource::bytes() const { return flow::group_of(parts_, 0).bytes; }

std::uint64_t GroupSource::compressed_bytes() const {
  const flow::PackedGroups::Group packed = flow::PackedGroups::in_memory(source_);
  return packed ? packed->bytes : 0;
}

void GroupSource::read(std::span<std::byte> into, Here here) const {
  const WeightGroup group = flow::group_of(parts_, 0);
  if (into.size() != group.bytes)
    base::fail(ErrorCode::kInvalidValue, here, "the group has {} bytes, and the caller passed room for {}", group.bytes,
               into.size());
  if (const flow::PackedGroups::Group packed = flow::PackedGroups::in_memory(source_))
    return flow::unpack(*packed, runtime::address(packed->image), into.data(), here);
  for (const WeightGroup::Part& part : group.parts)
    flow::PackedGroups::fill_part(source_, parts_[part.bytes.value.index], part,
                                  into.subspan(part.offset, part.bytes.bytes), here);
}

}  // namespace slip
