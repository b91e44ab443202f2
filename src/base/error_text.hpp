// bare_text: the text of an Error without the name of its code. Use it to make a new Error from the text, because the
// constructor adds the name again.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "slip/error.hpp"

namespace slip::base {

inline std::string bare_text(const Error& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(std::min(text.size(), std::string_view(code_name(error.code())).size() + 2)));
}

}  // namespace slip::base
