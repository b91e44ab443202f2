// The one form in which errors and reports name a stream: its id, and its name if the program gave it one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace slip::base {

// The name that the program gave to a stream; empty: none. Observers get "stream N" for a stream without a name; in a
// merged trace, N is the id that the stream had in its own process.
inline std::string_view given_stream_name(std::string_view name) {
  constexpr std::string_view kDefault = "stream ";
  const bool is_default = name.size() > kDefault.size() && name.starts_with(kDefault) &&
                          name.find_first_not_of("0123456789", kDefault.size()) == std::string_view::npos;
  return is_default ? std::string_view() : name;
}

// "5 'loads'", or "5" without a name
inline std::string stream_number(std::uint64_t id, std::string_view name) {
  const std::string_view given = given_stream_name(name);
  return given.empty() ? std::to_string(id) : fmt::format("{} '{}'", id, given);
}

// "stream 5 'loads'", or "stream 5"
inline std::string stream_text(std::uint64_t id, std::string_view name) { return "stream " + stream_number(id, name); }

}  // namespace slip::base
