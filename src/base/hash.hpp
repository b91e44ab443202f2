// Hash functions. Hash (FNV-1a) distinguishes values; it is not for security. SHA-256 (FIPS 180-4) and HMAC-SHA-256
// (RFC 2104) prove that a process knows a secret, and authenticate control messages between ranks. All give the same
// value in all processes and on all machines. Portable code suffices, because the hashed texts are short.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace slip::base {

// FNV-1a.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char letter : text) step(static_cast<unsigned char>(letter));
  }
  void add(std::int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) step(static_cast<unsigned char>(number >> shift));
  }
  void add(int number) { add(static_cast<std::int64_t>(number)); }
  std::uint64_t value() const { return value_; }

 private:
  void step(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3; }
  std::uint64_t value_ = 0xcbf29ce484222325;
};

inline std::uint64_t hash_of(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.value();
}

class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;

  void add(std::span<const std::byte> bytes);
  Digest finish();  // afterwards add() must not be called

 private:
  static constexpr std::size_t kBlockBytes = 64;
  void compress(const std::byte* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> block_{};
  std::uint64_t bytes_ = 0;
};

// HMAC-SHA-256 with one key for any number of messages: the part that depends on the key is computed once.
class Hmac {
 public:
  explicit Hmac(std::span<const std::byte> key);
  // The HMAC of the concatenation of all parts.
  Sha256::Digest of(std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  Sha256 inner_, outer_;
};

// Compares in a time that does not depend on the position of the first difference, so that an attacker learns nothing
// from it.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace slip::base
