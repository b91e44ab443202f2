#include "transport/secret.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "slip/error.hpp"

namespace slip {

std::uint64_t random_secret() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value))
    throw Error(Code::kIo, std::string("the system gives no random bytes: ") + std::strerror(errno), {});
  return value;
}

// FNV-1a, and a last mixing so that words that differ in the end differ in all bits.
std::uint64_t secret_of(std::string_view words) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : words) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  value = (value ^ (value >> 32)) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

}  // namespace slip
