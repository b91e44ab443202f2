// Writing JSON: strings with escapes, times as exact decimals; and checks of UTF-8.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "slip/op.hpp"

namespace slip {

// With quotes. Bytes that are not UTF-8 become U+FFFD, so the file is valid whatever the names are.
void append_string(fmt::memory_buffer& out, std::string_view text);

// Microseconds with six decimals: no picosecond is lost, as one would be in a double.
void append_micros(fmt::memory_buffer& out, Picos time);

// Bytes of the valid UTF-8 character at the start of `text`, which is not empty; 0 if there is none.
std::size_t utf8_character_bytes(std::string_view text);

bool is_utf8(std::string_view text);
std::string to_utf8(std::string_view text);
void append_code_point(std::string& out, std::uint32_t code_point);

}  // namespace slip
