// Names and sizes of data types and shapes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "slip/tensors.hpp"

namespace slip {
namespace {

struct TypeRow {
  DataType type;
  const char* name;
  std::size_t bytes;
};

constexpr std::array<TypeRow, 15> kTypes = {{{DataType::kBool, "BOOL", 1},
                                             {DataType::kU8, "U8", 1},
                                             {DataType::kI8, "I8", 1},
                                             {DataType::kF8E4M3, "F8_E4M3", 1},
                                             {DataType::kF8E5M2, "F8_E5M2", 1},
                                             {DataType::kU16, "U16", 2},
                                             {DataType::kI16, "I16", 2},
                                             {DataType::kF16, "F16", 2},
                                             {DataType::kBF16, "BF16", 2},
                                             {DataType::kU32, "U32", 4},
                                             {DataType::kI32, "I32", 4},
                                             {DataType::kF32, "F32", 4},
                                             {DataType::kU64, "U64", 8},
                                             {DataType::kI64, "I64", 8},
                                             {DataType::kF64, "F64", 8}}};

}  // namespace

// Another process may send an invalid type in the signature of its call, so an unknown value has a name, too.
const char* data_type_name(DataType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kTypes.size() ? kTypes[index].name : "unknown type";
}

std::size_t bytes_of(DataType type) { return kTypes[static_cast<std::size_t>(type)].bytes; }

std::optional<DataType> data_type_of(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
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
