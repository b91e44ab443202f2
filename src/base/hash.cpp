#include "base/hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace slip::base {
namespace {

constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* at) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint32_t>(at[i]);
  return value;
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t one =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const std::array<std::uint32_t, 8> added{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

void Sha256::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t at = bytes_ % kBlockBytes, count = std::min(kBlockBytes - at, bytes.size());
    if (count == kBlockBytes) {
      compress(bytes.data());
    } else {
      std::memcpy(block_.data() + at, bytes.data(), count);
      if (at + count == kBlockBytes) compress(block_.data());
    }
    bytes_ += count;
    bytes = bytes.subspan(count);
  }
}

Sha256::Digest Sha256::finish() {
  const std::uint64_t bits = bytes_ * 8;
  std::array<std::byte, kBlockBytes + 8> end{std::byte{0x80}};
  const std::size_t used = bytes_ % kBlockBytes;
  // Padding before the length, including the byte that holds the leading 1 bit.
  const std::size_t zeros = (used < 56 ? 56 : 120) - used;
  for (std::size_t i = 0; i < 8; ++i) end[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  add(std::span(end).first(zeros + 8));
  Digest result;
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return result;
}

Hmac::Hmac(std::span<const std::byte> key) {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    Sha256 hash;
    hash.add(key);
    const Sha256::Digest digest = hash.finish();
    std::ranges::copy(digest, padded.begin());
  } else {
    std::ranges::copy(key, padded.begin());
  }
  for (std::byte& byte : padded) byte ^= std::byte{0x36};
  inner_.add(padded);
  for (std::byte& byte : padded) byte ^= std::byte{0x36 ^ 0x5c};
  outer_.add(padded);
}

Sha256::Digest Hmac::of(std::initializer_list<std::span<const std::byte>> parts) const {
  Sha256 inner = inner_, outer = outer_;
  for (const std::span<const std::byte> part : parts) inner.add(part);
  outer.add(inner.finish());
  return outer.finish();
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  std::byte difference{a.size() == b.size() ? std::uint8_t{0} : std::uint8_t{1}};
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace slip::base
