// JsonFields: the one strict reader of the JSON files that this library writes or documents: device descriptions,
// costs, weight plans, graphs, tables of measured times, results of a lab. The caller reads each field by its key and
// gives the range of allowed values; finish() throws if the object has another field. Every error is kParse and names
// the file, the path of the key, and what is expected: "costs.json.samples[0].time_ps is 0: a whole number from 1 to
// ... is expected".
//
// Traces and safetensors files, which are large, have a faster parser: base/json_reader.hpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "slip/error.hpp"

namespace slip::base {

using Json = nlohmann::json;

// Parses a text that is not trusted: at most `max_bytes` long, at most 16 brackets deep, no key twice in an object.
// `file` names the text in errors.
Json parse_json(std::string_view text, std::string_view file, std::size_t max_bytes, Here here = {});

// Throws the error for a value that is not allowed: "PLACE is VALUE: ALLOWED".
[[noreturn]] void refuse_json(const std::string& place, const Json& value, std::string_view allowed, Here here);

class JsonFields {
 public:
  // `place` names the object in errors: "h200.json", or "h200.json.copies" for an object within it. `object` must
  // outlive this JsonFields.
  JsonFields(const Json& object, std::string place, Here here = {});

  // For a field that may be absent; null counts as absent.
  bool has(const char* key) {
    know(key);
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }

  std::string text(const char* key, std::size_t max_bytes = kMaxTextBytes);
  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max);
  std::uint64_t number(const char* key, std::uint64_t max = kMaxNumber);  // an integer from 0 to `max`
  double real(const char* key, double min, double max);
  bool boolean(const char* key) {
    const Json& value = raw(key);
    if (!value.is_boolean()) refuse(key, value, "true or false is expected");
    return value.get<bool>();
  }
  bool boolean(const char* key, bool fallback) { return has(key) ? boolean(key) : fallback; }
  JsonFields object(const char* key) { return {raw(key), path_of(key), here_}; }
  const Json& array(const char* key, std::size_t max_items);
  std::vector<JsonFields> objects(const char* key, std::size_t max_items = kMaxItems);  // an array of objects
  std::vector<std::string> texts(const char* key, std::size_t max_items = kMaxItems);
  std::vector<std::uint64_t> numbers(const char* key, std::size_t max_items = kMaxItems,
                                     std::uint64_t max = kMaxNumber);
  const Json& raw(const char* key);

  const Json& json() const { return object_; }
  const std::string& place() const { return place_; }
  std::string path_of(std::string_view key) const;

  void finish() const;  // throws if a field was neither read nor asked for with has()
  [[noreturn]] void refuse(const char* key, const Json& value, std::string_view allowed) const {
    refuse_json(path_of(key), value, allowed, here_);
  }
  // Throws an error about the object as a whole: "PLACE WHAT".
  [[noreturn]] void fail(std::string_view what) const;

  static constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxItems = std::size_t{1} << 24;
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 60;

 private:
  void know(const char* key);

  const Json& object_;
  std::string place_;
  Here here_;
  std::vector<std::string> known_;  // the keys that the caller has read or asked for
};

}  // namespace slip::base
