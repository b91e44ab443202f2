// Files compiled into the library by cmake/embed.cmake (slip_embed). Constant; any thread.
#pragma once

#include <string_view>

namespace slip::base {

struct EmbeddedFile {
  std::string_view name;  // without folder and extension
  std::string_view text;
  std::string_view sha256;  // of the text, in hexadecimal digits
};

}  // namespace slip::base
