// Secrets of 128 bits, which authenticate the connections of a job. A secret is random, derived from another one, or
// the secret that all processes of a user share. Also random numbers and hashes that need not be secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace slip::transport {

using Secret = std::array<std::byte, 16>;

Secret random_secret();
std::uint64_t random_number();
std::string random_name();  // 32 hexadecimal digits

// Derives a secret from another one by HMAC; the original cannot be computed from the result. The label names the
// purpose. Different salts, which need not be secret, give different secrets for one label.
Secret derive(std::span<const std::byte> from, std::string_view label, std::span<const std::byte> salt = {});

std::uint64_t number_of(std::string_view text);  // a hash, the same in every process; not secret

// The secret of ranks whose id names only an address, because no launcher gave them a secret. All processes of one user
// find the same one:
//   SLIP_SECRET=TEXT        at least 16 characters; other users of a host cannot read a process's environment
//   SLIP_SECRET_FILE=FILE   at least 16 bytes, owned by this user and readable by no other
//   neither                 ~/.config/slipstream/secret ($XDG_CONFIG_HOME), the same on all hosts that share the home
//                           directory; made with random bytes if it does not exist
// `job`: a text, not secret, that differs between jobs; so their secrets differ. `one_host`: the ranks connect over a
// Unix socket, where the kernel reports the user of the peer process, so no secret file is made. Throws if there is no
// secret, or if other users can read it.
Secret shared_secret(std::string_view job, bool one_host);

}  // namespace slip::transport
