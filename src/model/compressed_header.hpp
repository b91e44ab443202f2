// The header of a compressed file, for its reader and its writer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slip::model {

inline constexpr std::string_view kCodecName = "slip weights";
inline constexpr std::string_view kCheckPrefix = R"({"__metadata__":{"slip.check":")";
inline constexpr std::size_t kCheckDigits = 16;

// The check of a header that begins with kCheckPrefix; its own digits count as 0.
std::uint64_t header_check(std::string text);

}  // namespace slip::model
