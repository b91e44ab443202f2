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

// The secret of ranks whose id names only a place, because no launcher carried one to them: all processes of one user
// find the same.
//   SLIP_SECRET=WORDS         at least 16 characters; other users of a host cannot read a process's environment
//   SLIP_SECRET_FILE=FILE     at least 16 bytes, of this user and readable for no other
//   neither                   ~/.config/slipstream/secret ($XDG_CONFIG_HOME), made with random bytes if it is not
//   there:
//                             the same on all hosts that share the home directory
// `job`: words that keep jobs apart, and need not be secret. `one_host`: the ranks meet at a Unix socket, where the
// kernel says whose process the other one is; no file is made then. Throws if there is none, or if others can read it.
Secret shared_secret(std::string_view job, bool one_host);

}  // namespace slip
