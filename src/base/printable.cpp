#include "base/printable.hpp"

#include <cstdint>

#include "base/json_text.hpp"

namespace slip {
namespace {

std::uint32_t code_point_of(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(character[i])); };
  if (character.size() == 1) return byte(0);
  std::uint32_t value = byte(0) & (0x7FU >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) value = value << 6 | (byte(i) & 0x3FU);
  return value;
}

// Control characters of both sets, separators of lines, and marks that change the direction of the text around them.
bool is_printable(std::uint32_t code_point) {
  if (code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) return false;
  if (code_point == 0x061C || code_point == 0xFEFF) return false;
  if (code_point >= 0x200B && code_point <= 0x200F) return false;
  if (code_point >= 0x2028 && code_point <= 0x202E) return false;
  return code_point < 0x2060 || code_point > 0x206F;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    if (character == "\n" || character == "\r" || character == "\t") result += ' ';
    else if (bytes > 0 && is_printable(code_point_of(character))) result += character;
    else result.append(character.size(), '?');
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace slip
