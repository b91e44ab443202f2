// Hash: FNV-1a, which gives the same value in all processes and on all machines. Use it to distinguish values, not for
// security.
#pragma once

#include <cstdint>
#include <string_view>

namespace slip::base {

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

}  // namespace slip::base
