#include "backend/sim/fields.hpp"

#include <fmt/format.h>

namespace slip::sim {

std::uint64_t read_quantity(const Json& value, const std::string& where, Dimension dimension, std::uint64_t min,
                            std::uint64_t max) {
  const std::optional<std::uint64_t> amount =
      value.is_string() ? parse_quantity(value.get_ref<const std::string&>(), dimension) : std::nullopt;
  if (!amount || *amount < min || *amount > max)
    refuse_json(where, value,
                fmt::format("a text like \"{}\" from {} to {} is expected", example_of(dimension),
                            write_quantity(min, dimension), write_quantity(max, dimension)),
                {});
  return *amount;
}

std::uint64_t Fields::quantity(const char* key, Dimension dimension, std::uint64_t min, std::uint64_t max) {
  return read_quantity(raw(key), path_of(key), dimension, min, max);
}

Picos Fields::time(const char* key, Picos min, Picos max) {
  return static_cast<Picos>(
      quantity(key, Dimension::kTime, static_cast<std::uint64_t>(min), static_cast<std::uint64_t>(max)));
}

}  // namespace slip::sim
