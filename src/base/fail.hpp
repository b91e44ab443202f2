// make_error() and fail(): an Error with a formatted text, made or thrown.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "slip/error.hpp"

namespace slip::base {

template <class... Values>
Error make_error(Code code, Here here, fmt::format_string<Values...> text, Values&&... values) {
  return {code, fmt::format(text, std::forward<Values>(values)...), here};
}

template <class... Values>
[[noreturn]] void fail(Code code, Here here, fmt::format_string<Values...> text, Values&&... values) {
  throw make_error(code, here, text, std::forward<Values>(values)...);
}

}  // namespace slip::base
