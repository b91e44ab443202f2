#include "transport/bootstrap/secret.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/sha256.hpp"
#include "slip/error.hpp"

namespace slip {
namespace {

void fill_randomly(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(Code::kIo, std::string("the system gives no random bytes: ") + std::strerror(errno), {});
}

}  // namespace

Secret random_secret() {
  Secret secret;
  fill_randomly(secret);
  return secret;
}

std::uint64_t random_number() {
  std::uint64_t value = 0;
  fill_randomly(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

Secret derive(std::span<const std::byte> from, std::string_view label, std::span<const std::byte> salt) {
  const std::byte zero{0};  // ends the label, so that no label and salt are another label
  const Sha256::Digest digest = Hmac(from).of({std::as_bytes(std::span(label)), {&zero, 1}, salt});
  Secret secret;
  std::copy_n(digest.begin(), secret.size(), secret.begin());
  return secret;
}

// FNV-1a, and a last mixing so that words that differ in the end differ in all bits.
std::uint64_t number_of(std::string_view words) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : words) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  value = (value ^ (value >> 32)) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

}  // namespace slip
