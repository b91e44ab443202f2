// Names and sizes of data types and shapes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "slip/tensors.hpp"

namespace slip {
namespace {

// By DataType.
constexpr std::array<const char*, 15> kNames = {"BOOL", "U8",  "I8",  "F8_E4M3", "F8_E5M2", "U16", "I16", "F16",
                                                "BF16", "U32", "I32", "F32",     "U64",     "I64", "F64"};

}  // namespace

// Another process may send an invalid type in the signature of its call, so an unknown value has a name, too.
const char* data_type_name(DataType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown type";
}

std::optional<DataType> data_type_of(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<DataType>(found - kNames.begin());
  return std::nullopt;
}

std::optional<std::uint64_t> bytes_of(DataType type, const Shape& shape) {
  std::uint64_t bytes = bytes_of(type);
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace slip
