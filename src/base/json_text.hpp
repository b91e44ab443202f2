// Writing JSON: strings with escapes, times as exact decimals; and checks of UTF-8.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "slip/op.hpp"

namespace slip::base {

// Appends the text as a JSON string with quotes. Bytes that are not UTF-8 become U+FFFD, so that the file is always
// valid.
void append_string(fmt::memory_buffer& out, std::string_view text);
std::string json_string(std::string_view text);  // the same as a string

// Appends microseconds with six decimals: exact to the picosecond, which a double would not be.
void append_micros(fmt::memory_buffer& out, Picos time);

// The length in bytes of the UTF-8 character at the start of `text`, which must not be empty; 0: it is not valid.
std::size_t utf8_character_bytes(std::string_view text);

bool is_utf8(std::string_view text);
std::string to_utf8(std::string_view text);
void append_code_point(std::string& out, std::uint32_t code_point);

}  // namespace slip::base
