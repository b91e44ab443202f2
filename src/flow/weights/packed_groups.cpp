#include "flow/weights/packed_groups.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "base/fail.hpp"
#include "base/team.hpp"
#include "flow/weights/weight_groups.hpp"
#include "model/compressed_files.hpp"
#include "model/safetensors.hpp"
#include "runtime/core.hpp"

namespace slip::flow {
namespace {

constexpr std::uint64_t kMemoryBytes = std::uint64_t{256} << 20;  // of pinned memory: few large allocations

model::BlockId id_of(const PackedPart& part, std::size_t block) {
  const std::uint64_t index = part.sizes.first + block, each = model::block_weights(part.sizes.split);
  return {index, static_cast<std::uint32_t>(std::min(each, part.sizes.weights - index * each)), part.checksums[block]};
}

// The bytes of a block; `packed` is the whole packed group.
std::span<const std::byte> block_of(const PackedPart& part, std::size_t block, const std::byte* packed) {
  const auto end_of = [&](std::size_t i) {
    return std::uint64_t{part.ends[i]} * model::kBlockAlignment - part.sizes.base;
  };
  const std::uint64_t begin = block == 0 ? 0 : end_of(block - 1);
  return {packed + part.blocks_offset() + begin, end_of(block) - begin};
}

// Calls `visit(part, block)` for every block, on all cores.
template <class Visit>
void for_each_block(const PackedGroup& group, const Visit& visit) {
  constexpr std::size_t kBlocksPerIndex = 8;  // some microseconds of work
  for (const PackedPart& part : group.parts) {
    base::for_each_run(part.checksums.size(), kBlocksPerIndex, [&](std::size_t begin, std::size_t end) {
      for (std::size_t block = begin; block < end; ++block) visit(part, block);
    });
  }
}

void refuse_block(const PackedPart& part, std::size_t block, model::BlockFault fault, Here here) {
  base::fail(ErrorCode::kParse, here, "{}: block {}: {}", part.what, part.sizes.first + block,
             model::fault_text(fault));
}

void copy_on_all_cores(std::byte* into, std::span<const std::byte> from) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  base::for_each_run(from.size(), kPiece, [&](std::size_t begin, std::size_t end) {
    std::memcpy(into + begin, from.data() + begin, end - begin);
  });
}

void write_tables(const PackedPart& part, std::byte* into) {
  std::memcpy(into + part.offset, part.checksums.data(), 8 * part.checksums.size());
  std::memcpy(into + part.ends_offset(), part.ends.data(), 4 * part.ends.size());
  const std::uint64_t end = part.ends_offset() + 4 * part.ends.size();
  std::memset(into + end, 0, part.blocks_offset() - end);
}

// Names a weight that was compressed in memory.
std::string text_of(const GraphValue& weight) { return fmt::format("weight '{}'", weight.name); }

// Appends a part: places it in the packed group.
void append(PackedGroup& group, PackedPart part) {
  part.offset = group.bytes;
  group.bytes = part.blocks_offset() + part.blocks_bytes();
  group.parts.push_back(std::move(part));
}

// None if the part begins or ends within a block.
std::optional<PackedPart> part_in_file(const TensorFiles& files, const TensorInfo& tensor,
                                       const model::CompressedTensor& stored, const WeightGroup::Part& wanted,
                                       Here here) {
  const model::BlockTable& table = stored.table();
  const std::uint64_t each = std::uint64_t{model::block_weights(table.split())} * model::weight_bytes(table.split());
  const std::uint64_t end = wanted.bytes.offset + wanted.bytes.bytes;
  if (wanted.bytes.offset % each != 0 || (end % each != 0 && end != table.weights_bytes())) return std::nullopt;
  const std::size_t first = wanted.bytes.offset / each, last = (end + each - 1) / each;
  return PackedPart{.what = stored.text(),
                    .at = wanted.offset,
                    .bytes = wanted.bytes.bytes,
                    .sizes = model::DecompressSizes::of(table, first),
                    .checksums = {table.checksums().begin() + static_cast<std::ptrdiff_t>(first),
                                  table.checksums().begin() + static_cast<std::ptrdiff_t>(last)},
                    .ends = {table.ends().begin() + static_cast<std::ptrdiff_t>(first),
                             table.ends().begin() + static_cast<std::ptrdiff_t>(last)},
                    .file = &file_of(files, tensor, here),
                    .file_offset = stored.blocks_offset() + table.begin(first)};
}

}  // namespace

PackedGroups::Group PackedGroups::in_files(const WeightSource& source, const WeightGroup& wanted,
                                           std::span<const GraphValue> values, Here here) {
  if (!source.files_) return nullptr;
  const TensorFiles& files = *source.files_;
  PackedGroup group;
  group.decoded_bytes = wanted.bytes;
  for (const WeightGroup::Part& part : wanted.parts) {
    const TensorInfo& tensor = files.at(values[part.bytes.value.index].name, here);
    const model::CompressedTensor* const stored = compressed_of(files, tensor);
    std::optional<PackedPart> made = stored ? part_in_file(files, tensor, *stored, part, here) : std::nullopt;
    if (!made) return nullptr;
    append(group, std::move(*made));
  }
  return std::make_shared<const PackedGroup>(std::move(group));
}

void finish_packed(const PackedGroup& group, std::byte* into) {
  for (const PackedPart& part : group.parts) write_tables(part, into);
  for_each_block(group, [&](const PackedPart& part, std::size_t block) {
    const std::span<const std::byte> bytes = block_of(part, block, into);
    const model::BlockId id = id_of(part, block);
    if (model::weighted_sum(bytes.data(), bytes.size()) + model::checksum_seed(id.index, id.weights) != id.checksum)
      refuse_block(part, block, model::BlockFault::kChecksum, {});
  });
}

void unpack(const PackedGroup& group, const std::byte* packed, std::byte* into, Here here) {
  for_each_block(group, [&](const PackedPart& part, std::size_t block) {
    const std::uint64_t each =
        std::uint64_t{model::block_weights(part.sizes.split)} * model::weight_bytes(part.sizes.split);
    const model::BlockFault fault =
        model::decode_block(part.sizes.split, block_of(part, block, packed), id_of(part, block),
                            into + part.at + block * each, model::stores_for(group.decoded_bytes));
    if (fault != model::BlockFault::kNone) refuse_block(part, block, fault, here);
  });
}

void PackedGroups::fill_part(const WeightSource& source, const GraphValue& weight, const WeightGroup::Part& part,
                             std::span<std::byte> into, Here here) {
  if (source.files_)
    source.files_->read(source.files_->at(weight.name, here), part.bytes.offset, into.data(), into.size(), here);
  else if (source.fill_) source.fill_(weight, part.bytes.offset, into);
  else std::memcpy(into.data(), source.memory_(weight).data() + part.bytes.offset, into.size());
}

PackedGroups::PackedGroups(const Device& device, const std::vector<WeightGroup>& groups,
                           std::span<const GraphValue> values, const std::vector<const WeightSource*>& sources,
                           Here here) {
  std::vector<PackedGroup> open;  // groups without memory yet, and their blocks by part
  std::vector<model::EncodedBlocks> blocks;
  std::uint64_t bytes = 0;
  const auto close = [&] {
    if (open.empty()) return;
    memory_.push_back(device.alloc(bytes, MemoryKind::kPinned, "compressed weights", here));
    std::uint64_t at = 0;
    std::size_t next = 0;
    for (PackedGroup& group : open) {
      group.image = memory_.back().slice(at, group.bytes);
      std::byte* const into = runtime::address(group.image);
      for (const PackedPart& part : group.parts) {
        write_tables(part, into);
        copy_on_all_cores(into + part.blocks_offset(), blocks[next++]);
      }
      at += aligned(group.bytes);
      groups_.push_back(std::make_shared<const PackedGroup>(std::move(group)));
    }
    open.clear();
    blocks.clear();
    bytes = 0;
  };
  std::vector<std::byte> scratch;
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    PackedGroup group;
    group.decoded_bytes = groups[i].bytes;
    for (const WeightGroup::Part& part : groups[i].parts) {
      const GraphValue& weight = values[part.bytes.value.index];
      const WeightSource& source = *sources[i];
      std::span<const std::byte> plain;  // where the bytes are, or in `scratch`
      if (source.files_ || source.fill_) {
        scratch.resize(part.bytes.bytes);
        fill_part(source, weight, part, scratch, here);
        plain = scratch;
      } else {
        plain = source.memory_(weight).subspan(part.bytes.offset, part.bytes.bytes);
      }
      // A part that begins or ends within a weight is treated as bytes, which are stored raw.
      model::Split split = model::split_of(weight.type);
      if (part.bytes.bytes % model::weight_bytes(split) != 0) split = model::Split::kBytes;
      model::BlockTable table(split, part.bytes.bytes / model::weight_bytes(split), here);
      blocks.push_back(model::encode_blocks(table, 0, table.blocks(), plain, here));
      append(group, {.what = text_of(weight),
                     .at = part.offset,
                     .bytes = part.bytes.bytes,
                     .sizes = model::DecompressSizes::of(table),
                     .checksums = {table.checksums().begin(), table.checksums().end()},
                     .ends = {table.ends().begin(), table.ends().end()}});
    }
    bytes += aligned(group.bytes);
    open.push_back(std::move(group));
    if (bytes >= kMemoryBytes) close();
  }
  close();
}

std::vector<PackedGroups::Group> PackedGroups::of(const WeightSource& source, const std::vector<WeightGroup>& groups,
                                                  std::span<const GraphValue> values, Here here) {
  std::vector<Group> result(groups.size());
  if (source.packed_) {
    result = source.packed_->groups();
    // Also the names: another model may have weights of the same sizes.
    const auto same_part = [&](const PackedPart& packed, const WeightGroup::Part& part) {
      return packed.at == part.offset && packed.bytes == part.bytes.bytes &&
             packed.what == text_of(values[part.bytes.value.index]);
    };
    const auto same = [&](const Group& packed, const WeightGroup& group) {
      return packed->decoded_bytes == group.bytes && std::ranges::equal(packed->parts, group.parts, same_part);
    };
    if (!std::ranges::equal(result, groups, same))
      base::fail(ErrorCode::kInvalidValue, here,
                 "the weights were compressed for another graph: its {} weight groups are not the {} of this graph",
                 result.size(), groups.size());
  } else if (source.files_) {
    for (std::size_t i = 0; i < groups.size(); ++i) result[i] = in_files(source, groups[i], values, here);
  }
  return result;
}

}  // namespace slip::flow

namespace slip {

WeightSource WeightSource::compressed(const Device& device, const Graph& graph, const WeightSource& from, Here here) {
  from.check(graph, here);
  if (from.packed_) return from;
  const std::vector<WeightGroup> groups = flow::make_weight_groups(graph);
  WeightSource source;
  source.packed_ = std::make_shared<const flow::PackedGroups>(
      device, groups, graph.values(), std::vector<const WeightSource*>(groups.size(), &from), here);
  return source;
}

std::function<std::uint64_t(const WeightGroup&)> WeightSource::compressed_bytes(const Graph& graph) const {
  const std::vector<WeightGroup> groups = flow::make_weight_groups(graph);
  const std::vector<flow::PackedGroups::Group> packed = flow::PackedGroups::of(*this, groups, graph.values(), {});
  // By the first part of a group: the value, and the offset in it.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> bytes;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ValueBytes& first = groups[i].parts.front().bytes;
    if (packed[i]) bytes[{first.value.index, first.offset}] = packed[i]->bytes;
  }
  if (bytes.empty()) return {};
  return [bytes = std::move(bytes)](const WeightGroup& group) -> std::uint64_t {
    const ValueBytes& first = group.parts.front().bytes;
    const auto found = bytes.find({first.value.index, first.offset});
    return found == bytes.end() ? 0 : found->second;
  };
}

}  // namespace slip
