// The encoder of blocks.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "model/codec/block.hpp"

namespace slip::model {
namespace {

static_assert(std::endian::native == std::endian::little, "compressed weights are little-endian");

constexpr std::uint32_t kMaxWeights = kMaxLanes * kLaneWeights;

template <Split kSplit>
struct Fields {
  using Weight = std::conditional_t<kSplit == Split::kF32, std::uint32_t, std::uint16_t>;
  static constexpr int kExponentShift = kSplit == Split::kBf16 ? 7 : kSplit == Split::kF16 ? 10 : 23;
  static std::uint32_t exponent(std::uint32_t weight) {
    return weight >> kExponentShift & (kSplit == Split::kF16 ? 0x1F : 0xFF);
  }
  static std::uint32_t rest(std::uint32_t weight) {
    if constexpr (kSplit == Split::kF16) return weight & 0xFF;
    if constexpr (kSplit == Split::kF32) weight >>= 16;  // the upper half of an f32 is divided as a bf16
    return (weight >> 8 & 0x80) | (weight & 0x7F);
  }
};

// The exponents that get codes in a block: its header, and the tables to look codes up.
struct ExponentCodes {
  BlockHeader header{};
  std::array<std::uint8_t, 256> code{};    // by exponent: its code, 0 to 7
  std::array<std::uint8_t, 256> second{};  // by exponent: its digit if it is an escape, 0 to 15

  explicit ExponentCodes(const std::array<std::uint32_t, 256>& counts) {
    std::array<std::uint8_t, 256> order{};
    std::iota(order.begin(), order.end(), std::uint8_t{0});
    constexpr std::size_t kNamed = kTableExponents + kSecondExponents;
    // Exponents with equal counts are ordered by value, so that the same weights always give the same block.
    std::partial_sort(order.begin(), order.begin() + kNamed, order.end(), [&](std::uint8_t a, std::uint8_t b) {
      return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
    });
    std::uint32_t left = std::accumulate(counts.begin(), counts.end(), 0U);  // weights without a code so far
    code.fill(kEscape);
    second.fill(kFarEscape);
    for (std::uint8_t i = 0; i < kTableExponents; ++i) {
      header.first[i] = order[i];
      code[order[i]] = i;
      left -= counts[order[i]];
    }
    header.escapes = static_cast<std::uint16_t>(left);
    for (std::uint8_t i = 0; i < kSecondExponents; ++i) {
      const std::uint8_t exponent = order[kTableExponents + i];
      header.second[i] = exponent;
      second[exponent] = i;
      left -= counts[exponent];
    }
    header.far = static_cast<std::uint16_t>(left);
  }
};

// Packs eight bytes, each a value of 3 bits, into eight digits of 4 bits.
std::uint32_t digits_of(const std::uint8_t* values) {
  std::uint64_t x = 0;
  std::memcpy(&x, values, sizeof x);
  x = (x | x >> 4) & 0x00FF00FF00FF00FFU;
  x = (x | x >> 8) & 0x0000FFFF0000FFFFU;
  return static_cast<std::uint32_t>(x | x >> 16);
}

// Writes the 3-bit plane of these values, which are in the order of the weights.
void write_plane(const std::uint8_t* values, std::uint32_t lanes, std::byte* into) {
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const auto quarter = [&](std::uint32_t q) { return digits_of(values + (q * lanes + lane) * 8); };
    const std::uint32_t last = quarter(3);
    for (std::uint32_t q = 0; q < 3; ++q) {
      const std::uint32_t word = quarter(q) | (last >> q & 0x11111111U) << 3;
      std::memcpy(into + (q * lanes + lane) * 4, &word, sizeof word);
    }
  }
}

// Writes the lists of escapes. REQUIRES: the plane of codes is written, and the bytes of the lists are 0.
template <Split kSplit>
void write_escapes(const ExponentCodes& codes, const typename Fields<kSplit>::Weight* weights,
                   const BlockLayout& layout, std::byte* into) {
  std::byte* const list = into + layout.escapes;
  std::byte* far = list + (codes.header.escapes + 1) / 2;
  std::uint32_t escape = 0;
  for (std::uint32_t lane = 0; lane < layout.lanes; ++lane) {
    std::uint32_t words[3];
    for (std::uint32_t q = 0; q < 3; ++q)
      std::memcpy(&words[q], into + layout.codes + (q * layout.lanes + lane) * 4, sizeof words[q]);
    for (std::uint32_t mask = escape_mask(words[0], words[1], words[2]); mask != 0; mask &= mask - 1) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(mask));
      const std::uint32_t weight = weights[((bit & 3) * layout.lanes + lane) * 8 + bit / 4];
      const std::uint32_t exponent = Fields<kSplit>::exponent(weight);
      const std::uint32_t digit = codes.second[exponent];
      list[escape / 2] |= static_cast<std::byte>(digit << escape % 2 * 4);
      if (digit == kFarEscape) *far++ = static_cast<std::byte>(exponent);
      ++escape;
    }
  }
}

std::size_t store_raw(Split split, const std::byte* bytes, std::uint32_t weights, std::byte* into) {
  const std::size_t data = std::size_t{weights} * weight_bytes(split), all = raw_block_bytes(split, weights);
  std::copy_n(bytes, data, into);
  std::fill_n(into + data, all - data, std::byte{0});
  return all;
}

template <Split kSplit>
std::size_t encode(const std::byte* bytes, std::uint32_t count, std::byte* into) {
  using F = Fields<kSplit>;
  using Weight = typename F::Weight;
  std::array<Weight, kMaxWeights> weights;
  std::memcpy(weights.data(), bytes, count * sizeof(Weight));
  // Eight sets of counters: otherwise a run of equal exponents would wait for each increment of one counter.
  std::array<std::array<std::uint32_t, 256>, 8> parts{};
  std::uint32_t at = 0;
  for (; at + 8 <= count; at += 8) {
    for (std::uint32_t i = 0; i < 8; ++i) ++parts[i][F::exponent(weights[at + i])];
  }
  for (; at < count; ++at) ++parts[0][F::exponent(weights[at])];
  for (std::size_t part = 1; part < parts.size(); ++part) {
    for (std::size_t i = 0; i < 256; ++i) parts[0][i] += parts[part][i];
  }
  const ExponentCodes codes(parts[0]);
  const BlockLayout layout = layout_of(kSplit, count);
  const std::uint32_t size = packed_block_bytes(layout, codes.header.escapes, codes.header.far);
  if (size >= raw_block_bytes(kSplit, count)) return store_raw(kSplit, bytes, count, into);

  const std::uint32_t all = layout.lanes * kLaneWeights;
  std::fill(weights.begin() + count, weights.begin() + all,
            static_cast<Weight>(std::uint32_t{codes.header.first[0]} << F::kExponentShift));
  std::memcpy(into, &codes.header, sizeof codes.header);
  std::array<std::uint8_t, kMaxWeights> fields;
  for (std::uint32_t i = 0; i < all; ++i) fields[i] = codes.code[F::exponent(weights[i])];
  write_plane(fields.data(), layout.lanes, into + layout.codes);
  for (std::uint32_t i = 0; i < all; ++i) fields[i] = static_cast<std::uint8_t>(F::rest(weights[i]));
  std::memcpy(into + sizeof(BlockHeader), fields.data(), all);
  if constexpr (kSplit == Split::kF16) {
    for (std::uint32_t i = 0; i < all; ++i)
      fields[i] = static_cast<std::uint8_t>((weights[i] >> 13 & 4) | (weights[i] >> 8 & 3));
    write_plane(fields.data(), layout.lanes, into + layout.more);
  }
  if constexpr (kSplit == Split::kF32) {
    for (std::uint32_t i = 0; i < all; ++i) std::memcpy(into + layout.more + 2 * i, &weights[i], 2);
  }
  std::fill(into + layout.escapes, into + size, std::byte{0});
  write_escapes<kSplit>(codes, weights.data(), layout, into);
  return size;
}

}  // namespace

Split split_of(DataType type) {
  switch (type) {
    case DataType::kBF16: return Split::kBf16;
    case DataType::kF16: return Split::kF16;
    case DataType::kF32: return Split::kF32;
    default: return Split::kBytes;
  }
}

std::size_t encode_block(Split split, const std::byte* bytes, std::uint32_t weights, std::byte* into) {
  switch (split) {
    case Split::kBf16: return encode<Split::kBf16>(bytes, weights, into);
    case Split::kF16: return encode<Split::kF16>(bytes, weights, into);
    case Split::kF32: return encode<Split::kF32>(bytes, weights, into);
    case Split::kBytes: break;
  }
  return store_raw(split, bytes, weights, into);
}

}  // namespace slip::model
