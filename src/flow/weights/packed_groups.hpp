// Compressed weight groups. A packed group is one range of bytes, so that one copy moves it. For each part of the group
// it has the checksums and the ends of its blocks, then the blocks (model/codec/tensor.hpp). A device decodes it with a
// launch for each part (model/codec/kernel.hpp).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/codec/kernel.hpp"
#include "slip/device.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip::flow {

// Some blocks of a compressed tensor, which decode to one part of a weight group.
struct PackedPart {
  std::string what = {};            // names the file and the tensor in errors
  std::uint64_t at = 0, bytes = 0;  // of the decoded weights: where in the group, and how many
  model::DecompressSizes sizes = {};
  std::vector<std::uint64_t> checksums = {};  // by block
  std::vector<std::uint32_t> ends = {};
  const store::File* file = nullptr;  // has the blocks; null: PackedGroup::image has them
  std::uint64_t file_offset = 0;
  std::uint64_t offset = 0;  // in the packed group, a multiple of 16

  std::uint64_t ends_offset() const { return offset + 8 * checksums.size(); }
  std::uint64_t blocks_offset() const { return (offset + 12 * checksums.size() + 15) / 16 * 16; }
  std::uint64_t blocks_bytes() const {
    return ends.empty() ? 0 : std::uint64_t{ends.back()} * model::kBlockAlignment - sizes.base;
  }
};

struct PackedGroup {
  std::vector<PackedPart> parts;
  std::uint64_t bytes = 0;
  std::uint64_t decoded_bytes = 0;  // of the group
  Range image;                      // the packed group in pinned memory; empty: it is in files
};

// Completes a packed group whose blocks have been read to their places after `into`: writes the tables, and verifies
// the checksum of every block. Throws kParse with the file, the tensor and the block.
void finish_packed(const PackedGroup& group, std::byte* into);
// Decodes a packed group on the host. Bytes between the parts are left alone.
void unpack(const PackedGroup& group, const std::byte* packed, std::byte* into, Here here);

// The packed groups of a source, by weight group; null: the group is not compressed.
class PackedGroups {
 public:
  using Group = std::shared_ptr<const PackedGroup>;

  // Compresses all groups into pinned memory of the device, on all cores. `sources` by group.
  PackedGroups(const Device& device, const std::vector<WeightGroup>& groups, std::span<const GraphValue> values,
               const std::vector<const WeightSource*>& sources, Here here);
  const std::vector<Group>& groups() const { return groups_; }

  // Of a source that is compressed, in memory or in files. In files a group must be whole blocks. Throws kInvalidValue
  // if the source was compressed for another graph.
  static std::vector<Group> of(const WeightSource& source, const std::vector<WeightGroup>& groups,
                               std::span<const GraphValue> values, Here here);
  // The group of GroupSource::compressed(); null: the source is another one.
  static Group in_memory(const WeightSource& source) {
    return source.packed_ ? source.packed_->groups().front() : nullptr;
  }
  static bool has_files(const WeightSource& source) { return source.files_ != nullptr; }
  // One group of a source of files; null: it is not compressed, or not whole blocks.
  static Group in_files(const WeightSource& source, const WeightGroup& group, std::span<const GraphValue> values,
                        Here here);
  // A source of these groups.
  static WeightSource source_of(std::shared_ptr<const PackedGroups> groups) {
    WeightSource source;
    source.packed_ = std::move(groups);
    return source;
  }
  // Writes the source's bytes of one part, not compressed. The source is not one of compressed().
  static void fill_part(const WeightSource& source, const GraphValue& weight, const WeightGroup::Part& part,
                        std::span<std::byte> into, Here here);

 private:
  std::vector<Buffer> memory_;
  std::vector<Group> groups_;
};

}  // namespace slip::flow
