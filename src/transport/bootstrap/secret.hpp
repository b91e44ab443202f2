// Secrets of 128 bits, and numbers that need not be one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace slip {

using Secret = std::array<std::byte, 16>;

Secret random_secret();
std::uint64_t random_number();

// Another secret that follows from this one: who knows the second does not know the first. The label says what it is
// for, and the salt, which need not be secret, which one of its kind.
Secret derive(std::span<const std::byte> from, std::string_view label, std::span<const std::byte> salt = {});

std::uint64_t number_of(std::string_view words);  // no secret: the same in every process, and easy to find

}  // namespace slip
