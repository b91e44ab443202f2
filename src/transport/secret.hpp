// Secrets of 64 bits: random ones, and those that people who know the same words arrive at.
#pragma once

#include <cstdint>
#include <string_view>

namespace slip {

std::uint64_t random_secret();
std::uint64_t secret_of(std::string_view words);  // the same in every process

}  // namespace slip
