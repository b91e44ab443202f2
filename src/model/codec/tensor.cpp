#include "model/codec/tensor.hpp"

#include <algorithm>
#include <cstring>

#include "base/fail.hpp"
#include "base/team.hpp"

namespace slip::model {
namespace {

struct FixedHead {
  std::uint32_t magic = kCodecMagic;
  std::uint8_t version = kCodecVersion;
  std::uint8_t split = 0;
  std::uint16_t zero = 0;
  std::uint64_t weights = 0;
  std::uint64_t bytes = 0;     // of the whole tensor
  std::uint64_t checksum = 0;  // of the head, computed with 0 here
};
static_assert(sizeof(FixedHead) == BlockTable::kFixedBytes);

constexpr std::uint64_t kMaxWeights = std::uint64_t{1} << 40;
constexpr std::size_t kBlocksPerIndex = 8;  // blocks in one index of a parallel loop: some microseconds of work
constexpr std::size_t kBlocksAtOnce =
    512;  // encoded into scratch memory at a time; their offsets in the result are known only afterwards

template <class... Values>
[[noreturn]] void refuse(const std::string& what, Here here, fmt::format_string<Values...> text, Values&&... values) {
  base::fail(ErrorCode::kParse, here, "{}: {}", what, fmt::format(text, std::forward<Values>(values)...));
}

FixedHead read_fixed(std::span<const std::byte> head, std::uint64_t bytes, const std::string& what, Here here) {
  FixedHead fixed;
  if (head.size() < sizeof fixed || bytes < sizeof fixed)
    refuse(what, here, "{} bytes are too few for a compressed tensor: it was cut short",
           std::min<std::uint64_t>(head.size(), bytes));
  std::memcpy(&fixed, head.data(), sizeof fixed);
  if (fixed.magic != kCodecMagic)
    refuse(what, here, "it begins with {:#010x}, and a compressed tensor with {:#010x}", fixed.magic, kCodecMagic);
  if (fixed.version != kCodecVersion)
    refuse(what, here, "it has version {} of the format, and this program knows {}", fixed.version, kCodecVersion);
  if (fixed.split >= kSplits || fixed.zero != 0 || fixed.weights > kMaxWeights)
    refuse(what, here, "its head has type {} and {} weights, which no tensor has: it was changed", fixed.split,
           fixed.weights);
  if (fixed.bytes != bytes)
    refuse(what, here, "it has {1} bytes, and its head says {0}: it was changed or cut short", fixed.bytes, bytes);
  return fixed;
}

// The checksum of a head, whose own checksum counts as 0.
std::uint64_t head_checksum(std::span<const std::byte> head, const FixedHead& fixed) {
  FixedHead plain = fixed;
  plain.checksum = 0;
  std::byte begin[sizeof plain];
  std::memcpy(begin, &plain, sizeof plain);
  return weighted_sum(begin, sizeof begin) + 3 * weighted_sum(head.data() + sizeof plain, head.size() - sizeof plain) +
         checksum_seed(~std::uint64_t{1}, 0);
}

// Calls body(block) for the blocks [begin, end), on all cores.
template <class Body>
void for_each_block(std::size_t begin, std::size_t end, const Body& body) {
  base::for_each_run(end - begin, kBlocksPerIndex, [&](std::size_t from, std::size_t to) {
    for (std::size_t block = begin + from; block < begin + to; ++block) body(block);
  });
}

std::uint32_t weights_in(Split split, std::uint64_t weights, std::uint64_t block) {
  const std::uint64_t each = block_weights(split);
  return static_cast<std::uint32_t>(std::min(each, weights - block * each));
}

}  // namespace

BlockTable::BlockTable(Split split, std::uint64_t weights, Here here) : split_(split), weights_(weights) {
  if (weights > kMaxWeights)
    base::fail(ErrorCode::kInvalidValue, here, "a tensor of {} weights: at most {} can be compressed", weights,
               kMaxWeights);
  count_ = count_of(split, weights);
  if (count_ * max_block_bytes(split) / kBlockAlignment > UINT32_MAX)
    base::fail(ErrorCode::kInvalidValue, here,
               "a tensor of {} weights of {} bytes: only tensors below 64 GiB can be compressed", weights,
               weight_bytes(split));
  checksums_.reserve(count_);
  ends_.reserve(count_);
}

void BlockTable::add(std::size_t bytes, std::uint64_t checksum) {
  ends_.push_back(static_cast<std::uint32_t>((begin(ends_.size()) + bytes) / kBlockAlignment));
  checksums_.push_back(checksum);
}

BlockId BlockTable::id(std::size_t block) const {
  return {block, weights_in(split_, weights_, block), checksums_[block]};
}

std::vector<std::byte> BlockTable::head() const {
  std::vector<std::byte> result(head_bytes());
  FixedHead fixed{.split = static_cast<std::uint8_t>(split_), .weights = weights_, .bytes = bytes()};
  std::memcpy(result.data(), &fixed, sizeof fixed);
  if (!checksums_.empty()) {
    std::memcpy(result.data() + sizeof fixed, checksums_.data(), checksums_.size() * 8);
    std::memcpy(result.data() + sizeof fixed + checksums_.size() * 8, ends_.data(), ends_.size() * 4);
  }
  fixed.checksum = head_checksum(result, fixed);
  std::memcpy(result.data(), &fixed, sizeof fixed);
  return result;
}

std::size_t BlockTable::head_bytes_of(std::span<const std::byte> head, std::uint64_t bytes, const std::string& what,
                                      Here here) {
  const FixedHead fixed = read_fixed(head, bytes, what, here);
  const std::size_t size = head_bytes_of(count_of(static_cast<Split>(fixed.split), fixed.weights));
  if (size > bytes)
    refuse(what, here, "{} weights need a head of {} bytes, and the tensor has {} in all: it was changed or cut short",
           fixed.weights, size, bytes);
  return size;
}

BlockTable BlockTable::parse(std::span<const std::byte> head, std::uint64_t bytes, const std::string& what, Here here) {
  const FixedHead fixed = read_fixed(head, bytes, what, here);
  const std::size_t size = head_bytes_of(head, bytes, what, here);
  if (head.size() < size) refuse(what, here, "its head has {} bytes, and {} of them are there", size, head.size());
  if (head_checksum(head.first(size), fixed) != fixed.checksum)
    refuse(what, here, "its head does not match its checksum: it was changed");
  BlockTable table;
  table.split_ = static_cast<Split>(fixed.split);
  table.weights_ = fixed.weights;
  table.count_ = count_of(table.split_, table.weights_);
  table.checksums_.resize(table.count_);
  table.ends_.resize(table.count_);
  if (table.count_ != 0) {
    std::memcpy(table.checksums_.data(), head.data() + sizeof fixed, table.count_ * 8);
    std::memcpy(table.ends_.data(), head.data() + sizeof fixed + table.count_ * 8, table.count_ * 4);
  }
  for (std::size_t block = 0; block < table.count_; ++block) {
    const std::uint64_t from = table.begin(block), to = table.begin(block + 1);
    const std::uint32_t raw = raw_block_bytes(table.split_, weights_in(table.split_, table.weights_, block));
    if (to <= from || to - from > raw)
      refuse(what, here, "block {} of {} is at bytes {} to {}, and may have 1 to {} bytes: its head was changed", block,
             table.count_, from, to, raw);
  }
  if (table.bytes() != bytes)
    refuse(what, here, "its {} blocks end at byte {}, and it has {} bytes: it was changed or cut short", table.count_,
           table.bytes(), bytes);
  return table;
}

EncodedBlocks encode_blocks(BlockTable& table, std::size_t first, std::size_t count, std::span<const std::byte> weights,
                            Here here) {
  const Split split = table.split();
  const std::size_t room = max_block_bytes(split), data = std::size_t{block_weights(split)} * weight_bytes(split);
  EncodedBlocks result(count * room);  // memory that is not written costs nothing
  // Threads encode blocks here, each at its own offset. When the sizes are known, the blocks are copied to the result.
  const EncodedBlocks apart(std::min(count, kBlocksAtOnce) * room);
  std::vector<std::pair<std::size_t, std::uint64_t>> found(std::min(count, kBlocksAtOnce));  // bytes and checksum
  for (std::size_t begin = 0; begin < count; begin += kBlocksAtOnce) {
    const std::size_t end = std::min(count, begin + kBlocksAtOnce);
    for_each_block(begin, end, [&](std::size_t i) {
      alignas(64) std::byte again[kMaxLanes * kLaneWeights * sizeof(std::uint32_t)];
      BlockId id{first + i, weights_in(split, table.weights(), first + i)};
      const std::span<const std::byte> from = weights.subspan(i * data, std::size_t{id.weights} * weight_bytes(split));
      std::byte* const into = apart.data() + (i - begin) * room;
      const std::size_t bytes = encode_block(split, from.data(), id.weights, into);
      id.checksum = weighted_sum(into, bytes) + checksum_seed(id.index, id.weights);
      const BlockFault fault = decode_block(split, {into, bytes}, id, again);
      if (fault != BlockFault::kNone || std::memcmp(from.data(), again, from.size()) != 0)
        base::fail(ErrorCode::kInvalidValue, here,
                   "block {} does not decode to its weights ({}): check the memory of this machine", id.index,
                   fault_text(fault));
      found[i - begin] = {bytes, id.checksum};
    });
    const std::uint64_t base = table.begin(first);
    for (std::size_t i = begin; i < end; ++i) table.add(found[i - begin].first, found[i - begin].second);
    for_each_block(begin, end, [&](std::size_t i) {
      std::memcpy(result.data() + (table.begin(first + i) - base), apart.data() + (i - begin) * room,
                  table.block_bytes(first + i));
    });
  }
  result.set_size(table.begin(first + count) - table.begin(first));
  return result;
}

void decode_blocks(const BlockTable& table, std::size_t first, std::size_t count, std::span<const std::byte> blocks,
                   std::span<std::byte> into, const std::string& what, Here here) {
  const std::uint64_t base = table.begin(first), start = table.weights_begin(first);
  if (blocks.size() != table.begin(first + count) - base ||
      into.size() != std::min(table.weights_begin(first + count), table.weights_bytes()) - start)
    base::fail(ErrorCode::kInvalidValue, here,
               "{}: blocks {} to {} have {} bytes and decode to {}, and the caller passed {} and room for {}", what,
               first, first + count, table.begin(first + count) - base,
               std::min(table.weights_begin(first + count), table.weights_bytes()) - start, blocks.size(), into.size());
  for_each_block(first, first + count, [&](std::size_t block) {
    const BlockFault fault =
        decode_block(table.split(), blocks.subspan(table.begin(block) - base, table.block_bytes(block)),
                     table.id(block), into.data() + (table.weights_begin(block) - start), stores_for(into.size()));
    if (fault != BlockFault::kNone) refuse(what, here, "block {} of {}: {}", block, table.blocks(), fault_text(fault));
  });
}

}  // namespace slip::model
