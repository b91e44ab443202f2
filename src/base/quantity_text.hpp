// Formats quantities with their units for users, and parses sizes and lists that users type.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slip/op.hpp"

namespace slip::base {

inline constexpr std::uint64_t kKilo = 1'000, kMega = 1'000 * kKilo, kGiga = 1'000 * kMega, kTera = 1'000 * kGiga,
                               kPeta = 1'000 * kTera, kExa = 1'000 * kPeta;
inline constexpr std::uint64_t kKibi = 1'024, kMebi = 1'024 * kKibi, kGibi = 1'024 * kMebi, kTebi = 1'024 * kGibi;

std::string format_time(Picos time);                // "78.4 us"
std::string format_bytes(std::uint64_t bytes);      // "4 MiB"
std::string format_rate(double bytes_per_second);   // "55.4 GB/s"
std::string format_flops(double flops_per_second);  // "787 TFLOP/s"
std::string format_percent(double percent);         // "49.9 %"
std::string format_times(double factor);            // "1.53x"

// The number that the whole text is; nullopt if the text is no number, or one outside `low` to `high` (both allowed).
// `base`: the base of an integer; 10 if it is not given.
template <class Number>
std::optional<Number> parse_number(std::string_view text, Number low, Number high, auto... base) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= low && value <= high ? std::optional(value) : std::nullopt;
}

// The parts of a list such as "a,b,,c" between separators, which are one character each; parts may be empty.
std::vector<std::string_view> split(std::string_view list, std::string_view separators);

// "4MiB", "64 KiB", "1000", "2GB" -> bytes. K, M and G alone are powers of 1024; KB, MB and GB are powers of 1000.
// False: the text is not a size, or the size does not fit into 64 bits.
bool parse_bytes(std::string_view text, std::uint64_t& bytes);

}  // namespace slip::base
