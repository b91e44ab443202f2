// Eight bytes of text at a time. Little-endian throughout: byte 0 is the lowest.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace slip {

// Bytes behind a text that these functions may look at; they must be there, and zero.
inline constexpr std::size_t kScanPadding = 64;

inline std::uint64_t load_word(const char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

constexpr std::uint64_t every_byte(std::uint64_t byte) { return byte * 0x0101010101010101U; }

// The high bit of the first byte with the property is set, and none below it; bits above may be set wrongly.
inline std::uint64_t find_zero(std::uint64_t word) { return (word - every_byte(1)) & ~word & every_byte(0x80); }
inline std::uint64_t find_non_digit(std::uint64_t word) {
  return ((word + every_byte(0x46)) | (word - every_byte('0'))) & every_byte(0x80);
}

inline std::size_t first_byte(std::uint64_t bits) { return static_cast<std::size_t>(std::countr_zero(bits)) / 8; }

// The first quote, backslash or control character.
inline const char* end_of_plain(const char* at) {
  for (;; at += 8) {
    const std::uint64_t word = load_word(at);
    const std::uint64_t stop = find_zero(word ^ every_byte('"')) | find_zero(word ^ every_byte('\\')) |
                               ((word - every_byte(0x20)) & ~word & every_byte(0x80));
    if (stop != 0) return at + first_byte(stop);
  }
}

// The first brace or control character.
inline const char* end_of_flat(const char* at) {
  for (;; at += 8) {
    const std::uint64_t word = load_word(at);
    const std::uint64_t stop = find_zero(word ^ every_byte('}')) | find_zero(word ^ every_byte('{')) |
                               ((word - every_byte(0x20)) & ~word & every_byte(0x80));
    if (stop != 0) return at + first_byte(stop);
  }
}

inline constexpr std::array<std::uint64_t, 9> kPowersOfTen = {1,       10,        100,        1'000,      10'000,
                                                              100'000, 1'000'000, 10'000'000, 100'000'000};

// Eight digits as their values, the first in the lowest byte: neighbours become one number, three times over.
inline std::uint64_t join_digits(std::uint64_t digits) {
  const std::uint64_t pairs = (digits * 10 + (digits >> 8)) & 0x00FF00FF00FF00FFU;
  const std::uint64_t fours = (pairs * 100 + (pairs >> 16)) & 0x0000FFFF0000FFFFU;
  return (fours * 10'000 + (fours >> 32)) & 0xFFFFFFFFU;
}

// Reads up to 16 digits; `at` moves past them. Whether more follow is for the caller to see.
inline std::uint64_t read_digits(const char*& at) {
  std::uint64_t value = 0;
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t word = load_word(at);
    const std::uint64_t stop = find_non_digit(word);
    if (stop == 0) {
      value = value * kPowersOfTen[8] + join_digits(word - every_byte('0'));
      at += 8;
      continue;
    }
    const std::size_t count = first_byte(stop);
    if (count == 0) return value;
    at += count;
    return value * kPowersOfTen[count] + join_digits((word - every_byte('0')) << (64 - 8 * count));
  }
  return value;
}

// A key as it stands in compact JSON, with quotes and colon, to be compared in two words.
class JsonKey {
 public:
  consteval JsonKey(const char* name)  // NOLINT(google-explicit-constructor): a key is written as a string
      : name_(name) {
    put('"');
    for (const char letter : name_) put(letter);
    put('"');
    put(':');
  }
  bool matches(const char* at) const {
    return (((load_word(at) ^ words_[0]) & masks_[0]) | ((load_word(at + 8) ^ words_[1]) & masks_[1])) == 0;
  }
  std::string_view name() const { return name_; }
  std::size_t bytes() const { return bytes_; }  // with quotes and colon

 private:
  consteval void put(char letter) {
    const std::size_t shift = bytes_ % 8 * 8;
    words_[bytes_ / 8] |= static_cast<std::uint64_t>(static_cast<unsigned char>(letter)) << shift;
    masks_[bytes_ / 8] |= std::uint64_t{0xFF} << shift;
    ++bytes_;
  }
  std::string_view name_;
  std::array<std::uint64_t, 2> words_{}, masks_{};  // a longer name does not compile
  std::size_t bytes_ = 0;
};

}  // namespace slip
