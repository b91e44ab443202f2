// Fields: strict reading of a JSON object. Each field is taken once, with its range; what nobody took is an error.
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

// Parses without trusting the text: bounded in size and depth, no key twice.
Json parse_json(std::string_view text, std::string_view file);

class Fields {
 public:
  // `place` names the object in errors: "h200.json: copies".
  Fields(const Json& object, std::string place);

  bool has(const char* key) const { return object_.contains(key); }
  std::string text(const char* key, std::size_t longest);
  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most);
  bool boolean(const char* key);
  std::uint64_t quantity(const char* key, Dimension dimension, std::uint64_t least, std::uint64_t most);
  Picos time(const char* key, Picos min, Picos max);
  Fields object(const char* key);
  const Json& array(const char* key, std::size_t most);
  const Json& raw(const char* key);
  const Json& json() const { return object_; }
  const std::string& place() const { return place_; }

  void finish() const;  // throws when a field is left
  [[noreturn]] void refuse(const char* key, const Json& value, std::string_view allowed) const;

 private:
  const Json& object_;
  std::string place_;
  std::vector<std::string> taken_;
};

// Checks the text of a quantity in `value`; `where` names it in errors.
std::uint64_t read_quantity(const Json& value, const std::string& where, Dimension dimension, std::uint64_t least,
                            std::uint64_t most);

}  // namespace slip::sim
