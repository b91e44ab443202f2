// Columns: the numeric data of the timeline page. Each column is stored in the narrowest type that loses nothing. All
// columns are in one block of bytes, which the page contains as base64. Used by write_page().
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slip::watch {

std::string base64(std::string_view bytes);

class Columns {
 public:
  // Integers, stored as (value - base) / scale if that is narrower. The page has only doubles, so values above 2^53
  // lose precision.
  void integers(std::string_view key, const std::vector<std::int64_t>& values);
  // Indices, stored without base and scale, so that the page can use the bytes without a copy.
  void indices(std::string_view key, const std::vector<std::uint32_t>& values);

  // {"key":{"type":"u16","at":0,"count":7,"base":0,"scale":1},...}: value i is base + scale * stored[i]. The type
  // "same" stores nothing: every value is the base. Numbers are little-endian; each column starts at a multiple of 8
  // bytes.
  const fmt::memory_buffer& directory() const { return directory_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void describe(std::string_view key, const char* type, std::size_t count, std::int64_t base, std::uint64_t scale);
  void store(std::string_view key, const std::vector<std::uint64_t>& values, std::int64_t base, std::uint64_t scale);

  fmt::memory_buffer directory_;
  std::string bytes_;
};

}  // namespace slip::watch
