#include "base/terminal_text.hpp"

#include <fmt/format.h>

#include <iterator>

#include "base/json_text.hpp"

namespace slip {

std::string terminal_text(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t bytes = utf8_character_bytes(text);
    const bool control = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F ||
                         (bytes == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    const std::size_t count = bytes == 0 ? 1 : bytes;
    if (bytes != 0 && !control) {
      result.append(text.substr(0, count));
    } else {
      for (const char c : text.substr(0, count))
        fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(count);
  }
  return result;
}

}  // namespace slip
