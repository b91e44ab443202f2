// Constants and the checksum of a compressed file's header, shared by its reader and its writer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slip::model {

inline constexpr std::string_view kCodecName = "slip weights";
inline constexpr std::string_view kChecksumPrefix = R"({"__metadata__":{"slip.check":")";
inline constexpr std::size_t kChecksumDigits = 16;

// The checksum of a header that begins with kChecksumPrefix; its own digits count as 0.
std::uint64_t header_checksum(std::string text);

}  // namespace slip::model
