// DataType: the element types of tensors in files, graphs and collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace slip {

enum class DataType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};
const char* data_type_name(DataType type);  // as safetensors spells it: "BF16"
std::optional<DataType> data_type_of(std::string_view name);

// Sizes are powers of two. Every call of a collective needs them, so they are constants here: callers divide by a
// shift.
constexpr int log2_bytes_of(DataType type) {
  return type <= DataType::kF8E5M2 ? 0 : type <= DataType::kBF16 ? 1 : type <= DataType::kF32 ? 2 : 3;
}
constexpr std::size_t bytes_of(DataType type) { return std::size_t{1} << log2_bytes_of(type); }  // of one element

}  // namespace slip
