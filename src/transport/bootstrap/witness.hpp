// Witness: what the thread of a rank's connections does for it, whatever the rank itself is doing or stuck in.
#pragma once

#include <cstddef>
#include <vector>

namespace slip {

class Witness {
 public:
  virtual ~Witness() = default;
  // Some times a second. Neither may block or throw.
  virtual void look() = 0;
  virtual std::vector<std::byte> answer() = 0;  // to another rank that asks what this one is doing
};

}  // namespace slip
