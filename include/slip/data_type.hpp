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
std::size_t bytes_of(DataType type);  // of one element

}  // namespace slip
