// Weights for the tests of the codec, made from a seed.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/small_floats.hpp"
#include "slip/tensors.hpp"

namespace slip::test {

inline std::vector<std::byte> bytes_of_float(DataType type, float value) {
  std::vector<std::byte> result(bytes_of(type));
  if (type == DataType::kF32) {
    std::memcpy(result.data(), &value, sizeof value);
  } else {
    const std::uint16_t bits =
        type == DataType::kF16 ? base::from_float<base::F16>(value).bits : base::from_float<base::Bf16>(value).bits;
    std::memcpy(result.data(), &bits, std::min(sizeof bits, result.size()));
  }
  return result;
}

// Weights with the distribution of trained ones: normal, with mean 0.
inline std::vector<std::byte> normal_weights(DataType type, std::size_t count, std::uint64_t seed,
                                             float deviation = 0.02F) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<std::byte> result;
  result.reserve(count * bytes_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::byte> one = bytes_of_float(type, normal(random));
    result.insert(result.end(), one.begin(), one.end());
  }
  return result;
}

inline std::vector<std::byte> random_bits(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

// Weights whose exponents have up to `width` values, so that blocks have many escapes of both kinds.
inline std::vector<std::byte> wide_weights(DataType type, std::size_t count, std::uint64_t seed, int width) {
  std::mt19937_64 random(seed);
  const std::size_t size = bytes_of(type);
  std::vector<std::byte> result = random_bits(count * size, seed + 1);
  const int shift = type == DataType::kBF16 ? 7 : type == DataType::kF16 ? 10 : 23;
  const std::uint32_t mask = type == DataType::kF16 ? 0x1F : 0xFF;
  for (std::size_t i = 0; i < count; ++i) {
    // Three of four weights have one of few exponents.
    const auto exponent =
        static_cast<std::uint32_t>(random() % 4 != 0 ? random() % 5 : random() % static_cast<unsigned>(width));
    std::uint32_t bits = 0;
    std::memcpy(&bits, result.data() + i * size, size);
    bits = (bits & ~(mask << shift)) | (exponent & mask) << shift;
    std::memcpy(result.data() + i * size, &bits, size);
  }
  return result;
}

}  // namespace slip::test
