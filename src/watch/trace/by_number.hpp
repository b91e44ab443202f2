// Things by a number that is small as a rule, and may be anything in a damaged file: ids of streams, threads, devices.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace slip {

template <class Value>
class ByNumber {
 public:
  ByNumber() = default;
  ByNumber(const ByNumber&) = delete;
  ByNumber& operator=(const ByNumber&) = delete;

  // Made when it is not known yet. References stay valid.
  Value& operator[](std::uint64_t number) {
    auto& [key, value] = recent_[number % recent_.size()];
    if (!value || key != number) key = number, value = &all_[number];
    return *value;
  }

 private:
  std::unordered_map<std::uint64_t, Value> all_;
  std::array<std::pair<std::uint64_t, Value*>, 64> recent_{};  // a hash for every op would be felt
};

}  // namespace slip
