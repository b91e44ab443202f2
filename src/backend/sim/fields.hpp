// Fields: strict reading of a JSON object. Each field is read with its range; a field that was not read is an error.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "backend/sim/quantity.hpp"
#include "slip/op.hpp"

namespace slip::sim {

using Json = nlohmann::json;

// Parses untrusted text: limits its size and depth, and refuses duplicate keys.
Json parse_json(std::string_view text, std::string_view file);

class Fields {
 public:
  // `place` names the object in errors: "h200.json: copies".
  Fields(const Json& object, std::string place);

  bool has(const char* key) const { return object_.contains(key); }
  std::string text(const char* key, std::size_t max_bytes);
  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max);
  bool boolean(const char* key);
  std::uint64_t quantity(const char* key, Dimension dimension, std::uint64_t min, std::uint64_t max);
  Picos time(const char* key, Picos min, Picos max);
  Fields object(const char* key);
  const Json& array(const char* key, std::size_t max_elements);
  const Json& raw(const char* key);
  const Json& json() const { return object_; }
  const std::string& place() const { return place_; }

  void finish() const;  // throws if a field was not read
  [[noreturn]] void refuse(const char* key, const Json& value, std::string_view allowed) const;

 private:
  const Json& object_;
  std::string place_;
  std::vector<std::string> taken_;
};

// Reads a quantity with a unit; `where` names it in errors.
std::uint64_t read_quantity(const Json& value, const std::string& where, Dimension dimension, std::uint64_t min,
                            std::uint64_t max);

}  // namespace slip::sim
