// Witness: what the thread of a rank's connections does for it, whatever the rank itself is doing or stuck in.
#pragma once

#include <cstddef>
#include <vector>

namespace slip {

class Witness {
 public:
  virtual ~Witness() = default;
  // Now and then; true: something changes, so that it is worth looking again soon. Neither may block or throw.
  virtual bool look() = 0;
  virtual std::vector<std::byte> answer() = 0;  // to another rank that asks what this one is doing
};

}  // namespace slip
