// Reading compressed files: the header and the tensors.
#include "model/compressed_files.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"

namespace slip::model {
namespace {

const std::string* find(const SafetensorsHeader& header, std::string_view key) {
  const auto found = std::ranges::find_if(header.metadata, [&](const auto& text) { return text.first == key; });
  return found == header.metadata.end() ? nullptr : &found->second;
}

}  // namespace

std::uint64_t header_checksum(std::string text) {
  std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(kChecksumPrefix.size()), kChecksumDigits, '0');
  const std::uint64_t length = text.size();
  text.resize((text.size() + 15) / 16 * 16);
  return weighted_sum(reinterpret_cast<const std::byte*>(text.data()), text.size()) + checksum_seed(length, 0);
}

bool is_compressed(const SafetensorsHeader& header) { return find(header, "slip.codec") != nullptr; }

CompressedHeader read_compressed_header(const store::File& file, Here here) {
  const auto fail = [&](const std::string& what) {
    base::fail(ErrorCode::kParse, here, "'{}': {}", file.path(), what);
  };
  const std::string text = read_header_text(file, here);
  CompressedHeader result;
  result.stored = parse_header(text, file.size(), file.path(), here);
  if (!is_compressed(result.stored)) fail("it is not compressed: its metadata has no slip.codec");
  const auto value = [&](const char* key) -> const std::string& {
    const std::string* const found = find(result.stored, key);
    if (!found) fail(fmt::format("its metadata has no {}", key));
    return *found;
  };
  if (value("slip.codec") != kCodecName)
    fail(fmt::format("its codec is {}, and this program reads only '{}'", shown(value("slip.codec")), kCodecName));
  if (value("slip.version") != std::to_string(kCodecVersion))
    fail(fmt::format("its codec has version {}, and this program reads only version {}", shown(value("slip.version")),
                     kCodecVersion));
  if (!text.starts_with(kChecksumPrefix) || value("slip.check") != fmt::format("{:016x}", header_checksum(text)))
    fail("its header does not match its checksum: the file was damaged, or another program has rewritten it");
  const auto bytes = base::parse_number<std::uint64_t>(value("slip.bytes"), 0, std::uint64_t{1} << 62);
  if (!bytes) fail(fmt::format("its slip.bytes is {}, which is not the size of a file", shown(value("slip.bytes"))));
  result.original_bytes = *bytes;
  result.original_text = value("slip.header");
  if (result.original_bytes < 8 + result.original_text.size())
    fail(fmt::format(
        "its metadata names an original file of {} bytes, too small for its header of {} bytes: it was changed",
        result.original_bytes, result.original_text.size()));
  result.original = parse_header(result.original_text, result.original_bytes, file.path(), here);
  if (result.original.tensors.size() != result.stored.tensors.size())
    fail(fmt::format("it has {} tensors, and the original file has {}", result.stored.tensors.size(),
                     result.original.tensors.size()));
  for (std::size_t i = 0; i < result.stored.tensors.size(); ++i)
    result.stored_by_name.emplace(result.stored.tensors[i].name, i);
  for (const TensorInfo& tensor : result.original.tensors)
    static_cast<void>(result.stored_tensor(tensor, file.path(), here));
  return result;
}

const TensorInfo& CompressedHeader::stored_tensor(const TensorInfo& of, const std::string& path, Here here) const {
  const auto found = stored_by_name.find(of.name);
  if (found == stored_by_name.end())
    base::fail(ErrorCode::kParse, here, "'{}': tensor {} is missing", path, shown(of.name));
  return stored.tensors[found->second];
}

CompressedTensor::CompressedTensor(const store::File& file, const CompressedHeader& header, const TensorInfo& original,
                                   Here here)
    : file_(&file), what_(fmt::format("'{}': tensor {}", file.path(), shown(original.name))) {
  const TensorInfo& stored = header.stored_tensor(original, file.path(), here);
  offset_ = stored.offset;
  std::byte fixed[BlockTable::kFixedBytes];
  if (stored.bytes < sizeof fixed)
    base::fail(ErrorCode::kParse, here, "{}: {} bytes are too few for a compressed tensor", what_, stored.bytes);
  file.read(offset_, fixed, sizeof fixed, here);
  std::vector<std::byte> head(BlockTable::head_bytes_of(fixed, stored.bytes, what_, here));
  file.read(offset_, head.data(), head.size(), here);
  table_ = BlockTable::parse(head, stored.bytes, what_, here);
  if (table_.split() != split_of(original.type) || table_.weights_bytes() != original.bytes)
    base::fail(ErrorCode::kParse, here, "{}: it decodes to {} bytes, and the original has {} bytes of {}", what_,
               table_.weights_bytes(), original.bytes, data_type_name(original.type));
}

void CompressedTensor::decode(std::size_t first, std::size_t count, std::span<std::byte> into, Here here) const {
  std::vector<std::byte> blocks(table_.begin(first + count) - table_.begin(first));
  file_->read(blocks_offset() + table_.begin(first), blocks.data(), blocks.size(), here);
  decode_blocks(table_, first, count, blocks, into, what_, here);
}

// Decodes whole blocks directly into `into`. If only a part of a block is needed, decodes the block into `scratch` and
// copies that part.
void CompressedTensor::read(std::uint64_t offset, std::span<std::byte> into, Here here) const {
  // The maximum number of blocks in one decode(). Limits its memory for encoded blocks.
  constexpr std::size_t kPieceBlocks = 512;
  const std::uint64_t full_bytes = table_.weights_begin(1);  // decoded bytes of each block but the last
  const std::uint64_t end = offset + into.size();
  std::vector<std::byte> scratch;
  for (std::uint64_t at = offset; at < end;) {
    const std::size_t block = at / full_bytes;
    const std::uint64_t begin = table_.weights_begin(block);
    const std::uint64_t block_end = std::min(begin + full_bytes, table_.weights_bytes());
    std::byte* const target = into.data() + (at - offset);
    if (at == begin && block_end <= end) {
      std::size_t count = 1;
      std::uint64_t last = block_end;
      while (count < kPieceBlocks && last < table_.weights_bytes() &&
             std::min(last + full_bytes, table_.weights_bytes()) <= end)
        ++count, last = std::min(last + full_bytes, table_.weights_bytes());
      decode(block, count, {target, last - at}, here);
      at = last;
      continue;
    }
    scratch.resize(block_end - begin);
    decode(block, 1, scratch, here);
    const std::uint64_t to = std::min(block_end, end);
    std::copy(scratch.begin() + static_cast<std::ptrdiff_t>(at - begin),
              scratch.begin() + static_cast<std::ptrdiff_t>(to - begin), target);
    at = to;
  }
}

}  // namespace slip::model
