#include "base/json_text.hpp"

#include <iterator>

namespace slip::base {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// For a range of first bytes: the length of the character, and the bounds of its second byte. The bounds exclude
// overlong forms, surrogates and code points above U+10FFFF. Further bytes are 80 to BF.
struct Lead {
  unsigned first, last;
  std::size_t bytes;
  unsigned low, high;
};
constexpr Lead kLeads[] = {
    {0xC2, 0xDF, 2, 0x80, 0xBF}, {0xE0, 0xE0, 3, 0xA0, 0xBF}, {0xE1, 0xEC, 3, 0x80, 0xBF}, {0xED, 0xED, 3, 0x80, 0x9F},
    {0xEE, 0xEF, 3, 0x80, 0xBF}, {0xF0, 0xF0, 4, 0x90, 0xBF}, {0xF1, 0xF3, 4, 0x80, 0xBF}, {0xF4, 0xF4, 4, 0x80, 0x8F},
};

void append(fmt::memory_buffer& out, std::string_view text) { out.append(text.data(), text.data() + text.size()); }

void append_special(fmt::memory_buffer& out, char special) {
  switch (special) {
    case '"': append(out, "\\\""); break;
    case '\\': append(out, "\\\\"); break;
    case '\n': append(out, "\\n"); break;
    case '\t': append(out, "\\t"); break;
    default: fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(special));
  }
}

}  // namespace

std::size_t utf8_character_bytes(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  if (byte(0) < 0x80) return 1;
  for (const Lead& lead : kLeads) {
    if (byte(0) < lead.first || byte(0) > lead.last) continue;
    if (text.size() < lead.bytes || byte(1) < lead.low || byte(1) > lead.high) return 0;
    for (std::size_t i = 2; i < lead.bytes; ++i) {
      if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
    }
    return lead.bytes;
  }
  return 0;
}

std::string json_string(std::string_view text) {
  fmt::memory_buffer out;
  append_string(out, text);
  return fmt::to_string(out);
}

void append_string(fmt::memory_buffer& out, std::string_view text) {
  out.push_back('"');
  std::size_t plain = 0;  // start of the bytes that can be copied unchanged
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = utf8_character_bytes(text.substr(i));
    if (bytes > 0 && byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F) {
      i += bytes;
      continue;
    }
    append(out, text.substr(plain, i - plain));
    if (bytes == 0) append(out, kReplacement);
    else append_special(out, text[i]);
    plain = ++i;
  }
  append(out, text.substr(plain));
  out.push_back('"');
}

void append_micros(fmt::memory_buffer& out, Picos time) {
  const auto bits = static_cast<std::uint64_t>(time);
  const std::uint64_t magnitude = time < 0 ? 0 - bits : bits;
  if (time < 0) out.push_back('-');
  fmt::format_to(std::back_inserter(out), "{}.{:06}", magnitude / 1'000'000, magnitude % 1'000'000);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string to_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    result += bytes > 0 ? text.substr(0, bytes) : kReplacement;
    text.remove_prefix(bytes > 0 ? bytes : 1);
  }
  return result;
}

void append_code_point(std::string& out, std::uint32_t code_point) {
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    out += kReplacement;
    return;
  }
  constexpr std::uint32_t kFirst[] = {0, 0xC0, 0xE0, 0xF0};  // marks of the first byte, by the number of further bytes
  int further = code_point < 0x80 ? 0 : code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  out.push_back(static_cast<char>(kFirst[further] | (code_point >> (6 * further))));
  while (further-- > 0) out.push_back(static_cast<char>(0x80 | ((code_point >> (6 * further)) & 0x3F)));
}

}  // namespace slip::base
