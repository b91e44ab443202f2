#include "watch/page/columns.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>

namespace slip::watch {
namespace {

// Little-endian: the page reads the bytes with typed arrays, and machines with browsers are little-endian.
template <class Stored>
void append_all(std::string& bytes, const std::vector<std::uint64_t>& values) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t at = bytes.size();
  bytes.resize(at + values.size() * sizeof(Stored));
  char* out = bytes.data() + at;
  for (const std::uint64_t value : values) {
    const auto stored = static_cast<Stored>(value);
    std::memcpy(out, &stored, sizeof(Stored));
    out += sizeof(Stored);
  }
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) group = group << 8 | (k < left ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) text.push_back(k <= left ? kDigits[group >> (18 - 6 * k) & 63] : '=');
  }
  return text;
}

void Columns::describe(std::string_view key, const char* type, std::size_t count, std::int64_t base,
                       std::uint64_t scale) {
  bytes_.resize((bytes_.size() + 7) / 8 * 8);
  fmt::format_to(std::back_inserter(directory_),
                 "{}\"{}\":{{\"type\":\"{}\",\"at\":{},\"count\":{},\"base\":{},\"scale\":{}}}",
                 directory_.size() == 0 ? "" : ",", key, type, bytes_.size(), count, base, scale);
}

void Columns::store(std::string_view key, const std::vector<std::uint64_t>& values, std::int64_t base,
                    std::uint64_t scale) {
  const std::uint64_t max = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  const auto fits = [max](auto limit) { return max <= std::numeric_limits<decltype(limit)>::max(); };
  const auto store_as = [&]<class Stored>(Stored, const char* type) {
    describe(key, type, values.size(), base, scale);
    append_all<Stored>(bytes_, values);
  };
  if (max == 0) describe(key, "same", values.size(), base, scale);
  else if (fits(std::uint8_t{})) store_as(std::uint8_t{}, "u8");
  else if (fits(std::uint16_t{})) store_as(std::uint16_t{}, "u16");
  else if (fits(std::uint32_t{})) store_as(std::uint32_t{}, "u32");
  else store_as(double{}, "f64");
}

void Columns::integers(std::string_view key, const std::vector<std::int64_t>& values) {
  const std::int64_t base = values.empty() ? 0 : *std::min_element(values.begin(), values.end());
  // Unsigned, because the difference of two times may overflow a signed number.
  std::vector<std::uint64_t> above(values.size());
  std::uint64_t scale = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    above[i] = static_cast<std::uint64_t>(values[i]) - static_cast<std::uint64_t>(base);
    scale = scale == 1 ? 1 : std::gcd(scale, above[i]);
  }
  if (scale == 0) scale = 1;
  if (scale > 1)
    for (std::uint64_t& value : above) value /= scale;
  store(key, above, base, scale);
}

void Columns::indices(std::string_view key, const std::vector<std::uint32_t>& values) {
  store(key, {values.begin(), values.end()}, 0, 1);
}

}  // namespace slip::watch
