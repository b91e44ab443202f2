#include "base/stream_text.hpp"

#include <fmt/format.h>

namespace slip::base {

std::string_view given_stream_name(std::string_view name) {
  constexpr std::string_view kDefault = "stream ";
  const bool is_default = name.size() > kDefault.size() && name.starts_with(kDefault) &&
                          name.find_first_not_of("0123456789", kDefault.size()) == std::string_view::npos;
  return is_default ? std::string_view() : name;
}

std::string stream_number(std::uint64_t id, std::string_view name) {
  const std::string_view given = given_stream_name(name);
  return given.empty() ? std::to_string(id) : fmt::format("{} '{}'", id, given);
}

std::string stream_text(std::uint64_t id, std::string_view name) { return "stream " + stream_number(id, name); }

}  // namespace slip::base
