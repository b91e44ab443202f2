// make_error() and fail(): an Error with a formatted text, made or thrown. fail_errno(): the error of a system call
// that makes descriptors. bare_text(): the text of an Error. Files that include this header use fmt through it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "slip/error.hpp"

namespace slip::base {

template <class... Values>
Error make_error(ErrorCode code, Here here, fmt::format_string<Values...> text, Values&&... values) {
  return {code, fmt::format(text, std::forward<Values>(values)...), here};
}

template <class... Values>
[[noreturn]] void fail(ErrorCode code, Here here, fmt::format_string<Values...> text, Values&&... values) {
  throw make_error(code, here, text, std::forward<Values>(values)...);
}

// The process or the host has no descriptors left. A caller that knows the number that is needed adds it.
class TooManyFiles : public Error {
 public:
  using Error::Error;
};

// Throws kIo with "what: the text of the errno". For EMFILE and ENFILE it throws TooManyFiles, which names the limit
// and how to raise it.
[[noreturn]] void fail_errno(const std::string& what, int error);
bool is_out_of_descriptors(int error);

// The text of an Error without the name of its code. Use it to make a new Error from the text, because the constructor
// adds the name again.
inline std::string bare_text(const Error& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(std::min(text.size(), std::string_view(code_name(error.code())).size() + 2)));
}

}  // namespace slip::base
