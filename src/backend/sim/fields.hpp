// Fields of a device description: JsonFields that also reads quantities with a unit ("55.4 GB/s").
#pragma once

#include <cstdint>
#include <string>

#include "backend/sim/quantity.hpp"
#include "base/json_fields.hpp"
#include "slip/op.hpp"

namespace slip::sim {

class Fields : public JsonFields {
 public:
  using JsonFields::JsonFields;
  std::uint64_t quantity(const char* key, Dimension dimension, std::uint64_t min, std::uint64_t max);
  Picos time(const char* key, Picos min, Picos max);
  Fields object(const char* key) { return {raw(key), path_of(key)}; }
};

// Checks the text of a quantity in `value`; `where` names it in errors.
std::uint64_t read_quantity(const Json& value, const std::string& where, Dimension dimension, std::uint64_t min,
                            std::uint64_t max);

}  // namespace slip::sim
