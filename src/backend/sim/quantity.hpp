// Quantities with a unit, as in device descriptions: "141 GB", "55.4 GB/s", "787 TFLOP/s", "3.9 us". They are read
// exactly, without floating point. Used by description.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace slip::sim {

enum class Dimension : std::uint8_t { kBytes, kBytesPerSecond, kFlops, kTime };

// Returns bytes, bytes per second, operations per second or picoseconds. Returns nullopt if the text is no such
// quantity, no whole number of these, or too large for 64 bits.
std::optional<std::uint64_t> parse_quantity(std::string_view text, Dimension dimension);

// Writes the value with the largest unit that needs no fraction: "3900 ns".
std::string write_quantity(std::uint64_t value, Dimension dimension);

const char* example_of(Dimension dimension);

}  // namespace slip::sim
