#include "base/json_fields.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/fail.hpp"

namespace slip::base {
namespace {

constexpr int kMaxNesting = 16;

// The value for an error text: shortened, and valid UTF-8 whatever the file contains.
std::string short_text(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// A key for an error text, which may hold anything: without quotes if it is short and plain.
std::string key_text(const std::string& key) {
  const std::string quoted = short_text(Json(key));
  return quoted.size() == key.size() + 2 ? key : quoted;
}

// Checks the nesting depth before parsing: the parser recurses once per level, and could overflow the stack.
void require_shallow(std::string_view text, std::string_view file, Here here) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[')) {
      if (++depth > kMaxNesting)
        base::fail(ErrorCode::kParse, here, "{}: nested deeper than {} levels at byte {}", file, kMaxNesting, i);
    } else if (!in_string && (c == '}' || c == ']')) {
      --depth;
    }
  }
}

// Finds a key that an object has twice. The parser reports each event to it. It keeps the path of the present value for
// the error.
class KeyCheck {
 public:
  KeyCheck(std::string_view file, Here here) : file_(file), here_(here) {}

  void see(Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::object_start: open_.push_back({.is_array = false}); break;
      case Event::array_start: open_.push_back({.is_array = true}); break;
      case Event::key: enter(value.get_ref<const std::string&>()); break;
      case Event::object_end:
      case Event::array_end: open_.pop_back(); [[fallthrough]];
      case Event::value:
        if (!open_.empty()) ++open_.back().index;
        break;
    }
  }

 private:
  struct Open {
    bool is_array = false;
    std::size_t index = 0;  // of the present item of an array
    std::string key = {};   // of the present value of an object
    std::set<std::string> keys = {};
  };

  void enter(const std::string& key) {
    open_.back().key = key;
    if (!open_.back().keys.insert(key).second)
      base::fail(ErrorCode::kParse, here_, "{} is there twice: each key of an object is expected once", path());
  }
  std::string path() const {
    std::string path(file_);
    for (const Open& one : open_)
      path += one.is_array ? fmt::format("[{}]", one.index) : fmt::format(".{}", key_text(one.key));
    return path;
  }

  std::string_view file_;
  Here here_;
  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view file, std::size_t max_bytes, Here here) {
  if (text.size() > max_bytes)
    base::fail(ErrorCode::kParse, here, "{} has {} bytes: at most {} are allowed", file, text.size(), max_bytes);
  require_shallow(text, file, here);
  KeyCheck keys(file, here);
  const auto see = [&](int, Json::parse_event_t event, const Json& value) {
    keys.see(event, value);
    return true;
  };
  try {
    return Json::parse(text, see);
  } catch (const Json::exception& error) {
    base::fail(ErrorCode::kParse, here, "{}: {}", file, error.what());
  }
}

void refuse_json(const std::string& place, const Json& value, std::string_view allowed, Here here) {
  base::fail(ErrorCode::kParse, here, "{} is {}: {}", place, short_text(value), allowed);
}

JsonFields::JsonFields(const Json& object, std::string place, Here here)
    : object_(object), place_(std::move(place)), here_(here) {
  if (!object.is_object()) refuse_json(place_, object, "an object { ... } is expected", here_);
}

void JsonFields::know(const char* key) {
  if (std::ranges::find(known_, key) == known_.end()) known_.emplace_back(key);
}

std::string JsonFields::path_of(std::string_view key) const { return fmt::format("{}.{}", place_, key); }

void JsonFields::fail(std::string_view what) const { base::fail(ErrorCode::kParse, here_, "{} {}", place_, what); }

const Json& JsonFields::raw(const char* key) {
  const auto found = object_.find(key);
  if (found == object_.end()) {
    std::string present;  // one of them may be this field, misspelt
    for (const auto& [name, value] : object_.items()) present += fmt::format("{}{}", present.empty() ? "" : ", ", name);
    base::fail(ErrorCode::kParse, here_, "{} is missing; present are: {}", path_of(key), short_text(Json(present)));
  }
  know(key);
  return *found;
}

std::string JsonFields::text(const char* key, std::size_t max_bytes) {
  const Json& value = raw(key);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > max_bytes)
    refuse(key, value, fmt::format("a text of at most {} bytes is expected", max_bytes));
  return value.get<std::string>();
}

std::int64_t JsonFields::integer(const char* key, std::int64_t min, std::int64_t max) {
  const Json& value = raw(key);
  // get<int64_t>() would wrap a number of 2^63 or more. The test below is stricter: no caller allows more than 2^62.
  const bool fits =
      value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{1} << 62 : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max)
    refuse(key, value, fmt::format("a whole number from {} to {} is expected", min, max));
  return value.get<std::int64_t>();
}

std::uint64_t JsonFields::number(const char* key, std::uint64_t max) {
  const Json& value = raw(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max)
    refuse(key, value, fmt::format("a whole number from 0 to {} is expected", max));
  return value.get<std::uint64_t>();
}

double JsonFields::real(const char* key, double min, double max) {
  const Json& value = raw(key);
  if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max))
    refuse(key, value, fmt::format("a number from {} to {} is expected", min, max));
  return value.get<double>() + 0.0;  // makes -0.0 to 0: written as "-0", it would be read as an integer, without sign
}

const Json& JsonFields::array(const char* key, std::size_t max_items) {
  const Json& value = raw(key);
  if (!value.is_array() || value.size() > max_items)
    refuse(key, value, fmt::format("a list of at most {} items is expected", max_items));
  return value;
}

std::vector<JsonFields> JsonFields::objects(const char* key, std::size_t max_items) {
  std::vector<JsonFields> result;
  for (const Json& item : array(key, max_items))
    result.emplace_back(item, fmt::format("{}.{}[{}]", place_, key, result.size()), here_);
  return result;
}

std::vector<std::string> JsonFields::texts(const char* key, std::size_t max_items) {
  std::vector<std::string> result;
  for (const Json& item : array(key, max_items)) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > kMaxTextBytes)
      refuse_json(fmt::format("{}.{}[{}]", place_, key, result.size()), item,
                  fmt::format("a text of at most {} bytes is expected", kMaxTextBytes), here_);
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::vector<std::uint64_t> JsonFields::numbers(const char* key, std::size_t max_items, std::uint64_t max) {
  std::vector<std::uint64_t> result;
  for (const Json& item : array(key, max_items)) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > max)
      refuse_json(fmt::format("{}.{}[{}]", place_, key, result.size()), item,
                  fmt::format("a whole number from 0 to {} is expected", max), here_);
    result.push_back(item.get<std::uint64_t>());
  }
  return result;
}

void JsonFields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known_, key) == known_.end())
      refuse(key_text(key).c_str(), value,
             fmt::format("no such field is known; known are: {}", fmt::join(known_, ", ")));
  }
}

}  // namespace slip::base
