// Small files that are read as a whole.
#pragma once

#include <cstdint>
#include <string>

#include "slip/error.hpp"

namespace slip {

// Throws kIo with the path and the reason, kParse if it has more than `max_bytes`: then it is not `what`.
std::string read_text(const std::string& path, std::uint64_t max_bytes, const char* what, Here here);

}  // namespace slip
