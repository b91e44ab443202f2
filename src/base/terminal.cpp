#include "base/terminal.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>

#include "base/json_text.hpp"

namespace slip::base {
namespace {

std::uint32_t code_point_of(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(character[i])); };
  if (character.size() == 1) return byte(0);
  std::uint32_t value = byte(0) & (0x7FU >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) value = value << 6 | (byte(i) & 0x3FU);
  return value;
}

// False for control characters (C0 and C1), line separators, marks that change the text direction, and invisible
// characters such as the zero-width space.
bool is_printable(std::uint32_t code_point) {
  if (code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) return false;
  if (code_point == 0x061C || code_point == 0xFEFF) return false;
  if (code_point >= 0x200B && code_point <= 0x200F) return false;
  if (code_point >= 0x2028 && code_point <= 0x202E) return false;
  return code_point < 0x2060 || code_point > 0x206F;
}

// Calls replace(result, character) for each character that is not printable, and for each byte that is not UTF-8.
template <class Replace>
std::string replace_unprintable(std::string_view text, const Replace& replace) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    if (bytes > 0 && is_printable(code_point_of(character))) result += character;
    else replace(result, character);
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace

std::string terminal_text(std::string_view text) {
  return replace_unprintable(text, [](std::string& result, std::string_view character) {
    if (character == "\n" || character == "\t") {
      result += character;
      return;
    }
    for (const char c : character)
      fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
  });
}

std::string single_line_text(std::string_view text) {
  return replace_unprintable(text, [](std::string& result, std::string_view character) {
    if (character == "\n" || character == "\r" || character == "\t") result += ' ';
    else result.append(character.size(), '?');
  });
}

void log_line(std::string_view text) noexcept {
  try {
    fmt::print(stderr, "slip: {}\n", terminal_text(text));
  } catch (const std::exception&) {  // stderr is closed or full, or no memory for the text
  }
}

}  // namespace slip::base
