// The text of an error without the name of its code, for one that is thrown again with the same code.
#pragma once

#include <cstring>
#include <string>

#include "slip/error.hpp"

namespace slip {

inline std::string text_of(const Error& error) { return error.what() + std::strlen(code_name(error.code())) + 2; }

}  // namespace slip
