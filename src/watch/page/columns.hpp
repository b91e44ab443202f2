// Columns: the numbers of the timeline page. Each column is stored in the narrowest type that loses nothing. All of
// them lie in one block of bytes, which the page holds as base64.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace slip {

std::string base64(std::string_view bytes);

class Columns {
 public:
  // Whole numbers, stored as (value - base) / scale if that is narrower. Beyond 2^53 the page has only doubles.
  void integers(std::string_view key, const std::vector<std::int64_t>& values);
  // Indices, stored without base and scale, so that the page uses the bytes without a copy.
  void indices(std::string_view key, const std::vector<std::uint32_t>& values);

  // {"key":{"type":"u16","at":0,"count":7,"base":0,"scale":1},...}: value i is base + scale * stored[i]. The type
  // "same" stores nothing: every value is the base. Numbers are little-endian, each column starts at a multiple of 8.
  const fmt::memory_buffer& directory() const { return directory_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void describe(std::string_view key, const char* type, std::size_t count, std::int64_t base, std::uint64_t scale);
  void store(std::string_view key, const std::vector<std::uint64_t>& values, std::int64_t base, std::uint64_t scale);

  fmt::memory_buffer directory_;
  std::string bytes_;
};

}  // namespace slip
