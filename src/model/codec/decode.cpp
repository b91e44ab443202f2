// The decoder of blocks on the host: checksums, the portable loops, and escapes.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "model/codec/loops.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace slip::model {
namespace {

// memcpy() with non-temporal stores, which do not pass through the caches.
void copy_past_caches(std::byte* into, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  const auto misaligned = reinterpret_cast<std::uintptr_t>(into) % 16;
  const std::size_t head = std::min(bytes, misaligned == 0 ? 0 : 16 - misaligned),
                    end = head + (bytes - head) / 64 * 64;
  std::memcpy(into, from, head);
  for (std::size_t at = head; at < end; at += 64) {
    for (std::size_t part = at; part < at + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(into + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
  }
  std::memcpy(into + end, from + end, bytes - end);
  _mm_sfence();  // a release store does not order non-temporal stores: without the fence, another thread may miss them
#else
  std::memcpy(into, from, bytes);
#endif
}

std::uint32_t byte_at(const std::byte* at) { return std::to_integer<std::uint32_t>(*at); }

std::uint64_t portable_sum(const std::byte* block, std::size_t bytes) {
  std::uint64_t sum = 0;
  std::uint32_t factor = kFirstFactor;
  for (std::size_t at = 0; at < bytes; at += 4, factor += kFactorStep)
    sum += std::uint64_t{word_at(block + at)} * factor;
  return sum;
}

std::uint32_t portable_escapes(const std::byte* codes, std::uint32_t lanes, EscapePositions& positions) {
  EscapeMasks masks;
  find_masks(codes, 0, lanes, masks);
  return list_escapes(masks, lanes, positions);
}

constexpr LoopSet kPortableLoops{.sum = portable_sum, .find_escapes = portable_escapes};

struct NamedLoops {
  const char* name;
  const LoopSet* set;  // null: this processor cannot run them
};

// By CodecLoops: the last one that this processor can run is the fastest.
const NamedLoops& loops_of(CodecLoops loops) {
  static const NamedLoops kAll[] = {
      {"portable", &kPortableLoops}, {"AVX2", avx2_loops()}, {"AVX-512", avx512_loops()}, {"NEON", neon_loops()}};
  return kAll[static_cast<std::size_t>(loops)];
}

// Number of far escapes among the first `count` of a list.
std::uint32_t count_far(const std::byte* list, std::uint32_t count) {
  std::uint32_t far = 0;
  for (std::uint32_t i = 0; i < count / 2; ++i) {
    const std::uint32_t two = byte_at(list + i);
    far += ((two & 15) == kFarEscape ? 1 : 0) + (two >> 4 == kFarEscape ? 1 : 0);
  }
  return far + (count % 2 != 0 && (byte_at(list + count / 2) & 15) == kFarEscape ? 1 : 0);
}

class PackedBlock {
 public:
  PackedBlock(Split split, const std::byte* block, std::uint32_t weights, const LoopSet& loops)
      : split_(split), block_(block), weights_(weights), loops_(loops), layout_(layout_of(split, weights)) {
    std::memcpy(&header_, block, sizeof header_);
  }

  // The size of the block by its header. None: no encoder writes such a header.
  std::optional<std::uint32_t> bytes() const {
    if (header_.escapes > weights_ || header_.far > header_.escapes) return std::nullopt;
    if (header_.first[kEscape] != 0 || header_.second[kFarEscape] != 0 || header_.zero != 0) return std::nullopt;
    return packed_block_bytes(layout_, header_.escapes, header_.far);
  }

  // Finds all escapes. False: the numbers of escapes and of far escapes are not those of the header.
  bool find_escapes() {
    if (loops_.find_escapes(block_ + layout_.codes, layout_.lanes, positions_) != header_.escapes) return false;
    if (weights_ % kLaneWeights != 0) {
      const auto in_padding = [this](std::uint16_t at) { return at >= weights_; };
      if (std::any_of(positions_.at, positions_.at + header_.escapes, in_padding)) return false;
    }
    return count_far(block_ + layout_.escapes, header_.escapes) == header_.far;
  }

  // REQUIRES: bytes() is the size of the block, and find_escapes() has returned true.
  void decode(std::byte* into) const {
    switch (split_) {
      case Split::kBf16: return decode_as<Split::kBf16, std::uint16_t, 7>(into);
      case Split::kF16: return decode_as<Split::kF16, std::uint16_t, 10>(into);
      case Split::kF32: return decode_as<Split::kF32, std::uint32_t, 23>(into);
      case Split::kBytes: return;  // has no packed blocks
    }
  }

 private:
  template <Split kSplit, class Weight, int kExponentShift>
  void decode_as(std::byte* into) const {
    LoopSet::Expand* const expand = loops_.expand[static_cast<std::size_t>(kSplit)];
    if (expand != nullptr && weights_ == kMaxLanes * kLaneWeights) expand(block_, header_, into);
    else expand_portably<kSplit, Weight>(into);
    put_exponents<Weight, kExponentShift>(into);
  }

  template <Split kSplit, class Weight>
  void expand_portably(std::byte* into) const {
    for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
      for (std::uint32_t lane = 0; lane < layout_.lanes; ++lane) {
        const std::uint32_t codes = digits(layout_.codes, lane, quarter);
        [[maybe_unused]] std::uint32_t more = 0;
        if constexpr (kSplit == Split::kF16) more = digits(layout_.more, lane, quarter);
        for (std::uint32_t i = 0; i < 8; ++i) {
          const std::uint32_t at = (quarter * layout_.lanes + lane) * 8 + i;
          if (at >= weights_) return;
          const std::uint32_t exponent = header_.first[codes >> 4 * i & 7];
          const std::uint32_t rest = byte_at(block_ + sizeof(BlockHeader) + at);
          Weight weight{};
          if constexpr (kSplit == Split::kBf16) weight = static_cast<Weight>(join_bf16(exponent, rest));
          else if constexpr (kSplit == Split::kF16)
            weight = static_cast<Weight>(join_f16(exponent, rest, more >> 4 * i & 7));
          else weight = join_f32(exponent, rest, low_half(at));
          std::memcpy(into + std::size_t{at} * sizeof(Weight), &weight, sizeof(Weight));
        }
      }
    }
  }

  // The eight 3-bit values of a quarter of a lane.
  std::uint32_t digits(std::uint32_t plane, std::uint32_t lane, std::uint32_t quarter) const {
    const auto word = [&](std::uint32_t q) { return word_at(block_ + plane + (q * layout_.lanes + lane) * 4); };
    return quarter < 3 ? word(quarter) : fourth_word(word(0), word(1), word(2));
  }
  std::uint32_t low_half(std::uint32_t at) const {
    const std::byte* const low = block_ + layout_.more + 2 * at;
    return byte_at(low) | byte_at(low + 1) << 8;
  }

  // Sets the exponents of the escapes. The exponents are 0 before: header_.first[kEscape] is 0.
  template <class Weight, int kShift>
  void put_exponents(std::byte* into) const {
    const std::byte* const list = block_ + layout_.escapes;
    const std::byte* far = list + (header_.escapes + 1) / 2;
    for (std::uint32_t escape = 0; escape < header_.escapes; ++escape) {
      const std::uint32_t digit = byte_at(list + escape / 2) >> escape % 2 * 4 & 15;
      std::uint32_t exponent = header_.second[digit];
      if (digit == kFarEscape) [[unlikely]]
        exponent = byte_at(far++);
      if constexpr (kShift == 10) exponent &= 0x1F;
      std::byte* const at = into + std::size_t{positions_.at[escape]} * sizeof(Weight);
      Weight weight{};
      std::memcpy(&weight, at, sizeof(Weight));
      weight = static_cast<Weight>(weight | exponent << kShift);
      std::memcpy(at, &weight, sizeof(Weight));
    }
  }

  Split split_;
  const std::byte* block_;
  std::uint32_t weights_;
  const LoopSet& loops_;
  BlockLayout layout_;
  BlockHeader header_;
  EscapePositions positions_;  // set by find_escapes()
};

}  // namespace

const char* fault_text(BlockFault fault) {
  switch (fault) {
    case BlockFault::kNone: return "no fault was found";
    case BlockFault::kSize: return "its size contradicts its numbers of weights and escapes";
    case BlockFault::kChecksum: return "its bytes do not match its checksum: they were changed";
    case BlockFault::kEscapes: return "its lists of escapes contradict its codes";
  }
  return "unknown fault";
}

bool has_loops(CodecLoops loops) { return loops_of(loops).set != nullptr; }

const char* loops_name(CodecLoops loops) { return loops_of(loops).name; }

CodecLoops best_loops() {
  static const CodecLoops kBest = *std::find_if(std::rbegin(kAllCodecLoops), std::rend(kAllCodecLoops), has_loops);
  return kBest;
}

std::uint64_t weighted_sum(const std::byte* block, std::size_t bytes, CodecLoops loops) {
  return loops_of(loops).set->sum(block, bytes);
}

BlockFault decode_block(Split split, std::span<const std::byte> block, const BlockId& id, std::byte* into,
                        Stores stores, CodecLoops loops) {
  if (id.weights == 0 || id.weights > block_weights(split)) return BlockFault::kSize;
  const std::uint32_t raw = raw_block_bytes(split, id.weights);
  if (block.size() > raw || block.size() % kBlockAlignment != 0) return BlockFault::kSize;
  const LoopSet& set = *loops_of(loops).set;
  const std::size_t bytes = std::size_t{id.weights} * weight_bytes(split);
  const auto is_changed = [&] {
    return set.sum(block.data(), block.size()) + checksum_seed(id.index, id.weights) != id.checksum;
  };
  if (block.size() == raw) {
    if (is_changed()) return BlockFault::kChecksum;
    if (stores == Stores::kPastCaches) copy_past_caches(into, block.data(), bytes);
    else std::memcpy(into, block.data(), bytes);
    return BlockFault::kNone;
  }
  if (split == Split::kBytes || block.size() < layout_of(split, id.weights).escapes) return BlockFault::kSize;
  // The checksum is compared first: otherwise damaged counts in the header would be reported as kSize or kEscapes.
  if (is_changed()) return BlockFault::kChecksum;
  PackedBlock packed(split, block.data(), id.weights, set);
  if (packed.bytes() != block.size()) return BlockFault::kSize;
  if (!packed.find_escapes()) return BlockFault::kEscapes;
  if (stores == Stores::kPastCaches) {
    // put_exponents() changes weights again, so they are decoded into this buffer, which fits into the L1 or L2 cache.
    alignas(64) std::byte weights[kMaxLanes * kLaneWeights * sizeof(std::uint32_t)];
    packed.decode(weights);
    copy_past_caches(into, weights, bytes);
  } else {
    packed.decode(into);
  }
  return BlockFault::kNone;
}

}  // namespace slip::model
