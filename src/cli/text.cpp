#include "cli/text.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/json_text.hpp"
#include "base/terminal.hpp"

namespace slip::cli {
namespace {

bool write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// Number of bytes at the end that begin a UTF-8 character whose rest comes with the next write.
std::size_t cut_character(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(3, text.size()); ++bytes) {
    const auto first = static_cast<unsigned char>(text[text.size() - bytes]);
    if (first < 0x80) return 0;
    if (first < 0xC0) continue;
    const std::size_t whole = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    return bytes < whole ? bytes : 0;
  }
  return 0;
}

ssize_t write_escaped(void* cookie, const char* data, std::size_t size) {
  std::string& left = *static_cast<std::string*>(cookie);
  const std::string text = left + std::string(data, size);
  const std::size_t cut = cut_character(text);
  left = text.substr(text.size() - cut);
  return write_all(base::terminal_text(std::string_view(text).substr(0, text.size() - cut)))
             ? static_cast<ssize_t>(size)
             : 0;
}

}  // namespace

void escape_standard_output() {
#ifdef __GLIBC__  // other C libraries cannot replace `stdout`
  static std::string left;
  std::FILE* escaped =
      ::fopencookie(&left, "w", {.read = nullptr, .write = write_escaped, .seek = nullptr, .close = nullptr});
  if (!escaped) return;
  if (::isatty(STDOUT_FILENO) != 0) std::setvbuf(escaped, nullptr, _IOLBF, BUFSIZ);
  std::fflush(stdout);
  stdout = escaped;
#endif
}

std::size_t terminal_columns(std::size_t otherwise) {
  constexpr std::size_t kMin = 40;
  struct winsize size {};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return otherwise;
  return std::max<std::size_t>(size.ws_col, kMin);
}

std::string paragraph(std::string_view text, std::size_t indent, std::string_view first) {
  const std::size_t columns = std::min(kColumns, terminal_columns(kColumns));
  const std::string margin(indent, ' ');
  std::string line(first.empty() ? margin : std::string(first));
  std::string result;
  bool empty = true;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view next = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (!empty && line.size() + 1 + next.size() > columns) {
      result += line + '\n';
      line = margin;
      empty = true;
    }
    if (!empty) line += ' ';
    line += next;
    empty = false;
  }
  return result + line + '\n';
}

std::string html_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
}

}  // namespace slip::cli
