#include "backend/sim/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "slip/error.hpp"

namespace slip::sim {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 20;
constexpr int kDeepest = 16;

// The value as the error shows it: short, and valid UTF-8 whatever the file holds.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

[[noreturn]] void refuse_value(const std::string& where, const Json& value, std::string_view allowed) {
  throw Error(Code::kParse, fmt::format("{} is {}: {}", where, shown(value), allowed), {});
}

// Depth is checked before the parser sees the text, so that no parser needs to be trusted with it.
void require_shallow(std::string_view text, std::string_view file) {
  int depth = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside && c == '\\') {
      ++i;
    } else if (c == '"') {
      inside = !inside;
    } else if (!inside && (c == '{' || c == '[')) {
      if (++depth > kDeepest)
        throw Error(Code::kParse, fmt::format("{}: nested deeper than {} at byte {}", file, kDeepest, i), {});
    } else if (!inside && (c == '}' || c == ']')) {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view file) {
  if (text.size() > kMaxText)
    throw Error(Code::kParse, fmt::format("{}: {} bytes; at most {}", file, text.size(), kMaxText), {});
  require_shallow(text, file);
  std::vector<std::set<std::string>> keys;
  const auto no_key_twice = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw Error(Code::kParse, fmt::format("{}: key {} twice", file, shown(value)), {});
    return true;
  };
  try {
    return Json::parse(text, no_key_twice);
  } catch (const Json::exception& error) {
    throw Error(Code::kParse, fmt::format("{}: {}", file, error.what()), {});
  }
}

Fields::Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) refuse_value(place_, object, "an object { ... } is expected");
}

void Fields::refuse(const char* key, const Json& value, std::string_view allowed) const {
  refuse_value(fmt::format("{}.{}", place_, key), value, allowed);
}

const Json& Fields::raw(const char* key) {
  const auto found = object_.find(key);
  if (found == object_.end()) throw Error(Code::kParse, fmt::format("{}.{} is missing", place_, key), {});
  taken_.emplace_back(key);
  return *found;
}

std::string Fields::text(const char* key, std::size_t longest) {
  const Json& value = raw(key);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > longest)
    refuse(key, value, fmt::format("a text of at most {} bytes is expected", longest));
  return value.get<std::string>();
}

std::int64_t Fields::integer(const char* key, std::int64_t least, std::int64_t most) {
  const Json& value = raw(key);
  // An unsigned number above 2^63 would wrap in get<int64_t>.
  const bool small =
      value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{1} << 62 : value.is_number_integer();
  if (!small || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
    refuse(key, value, fmt::format("a whole number from {} to {} is expected", least, most));
  return value.get<std::int64_t>();
}

bool Fields::boolean(const char* key) {
  const Json& value = raw(key);
  if (!value.is_boolean()) refuse(key, value, "true or false is expected");
  return value.get<bool>();
}

std::uint64_t read_quantity(const Json& value, const std::string& where, Dimension dimension, std::uint64_t least,
                            std::uint64_t most) {
  const std::optional<std::uint64_t> amount =
      value.is_string() ? parse_quantity(value.get_ref<const std::string&>(), dimension) : std::nullopt;
  if (!amount || *amount < least || *amount > most)
    refuse_value(where, value,
                 fmt::format("a text like \"{}\" from {} to {} is expected", example_of(dimension),
                             write_quantity(least, dimension), write_quantity(most, dimension)));
  return *amount;
}

std::uint64_t Fields::quantity(const char* key, Dimension dimension, std::uint64_t least, std::uint64_t most) {
  return read_quantity(raw(key), fmt::format("{}.{}", place_, key), dimension, least, most);
}

Picos Fields::time(const char* key, Picos min, Picos max) {
  return static_cast<Picos>(
      quantity(key, Dimension::kTime, static_cast<std::uint64_t>(min), static_cast<std::uint64_t>(max)));
}

Fields Fields::object(const char* key) { return {raw(key), fmt::format("{}.{}", place_, key)}; }

const Json& Fields::array(const char* key, std::size_t most) {
  const Json& value = raw(key);
  if (!value.is_array() || value.size() > most)
    refuse(key, value, fmt::format("a list of at most {} is expected", most));
  return value;
}

void Fields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(taken_.begin(), taken_.end(), key) == taken_.end())
      refuse(shown(Json(key)).c_str(), value, "no such field is known");
  }
}

}  // namespace slip::sim
