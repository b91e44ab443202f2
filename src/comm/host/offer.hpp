// Offer: what a rank tells the others with its post of a larger call: where they find its input and output, if they can
// reach them. All see the same offers, so all choose the same way.
#pragma once

#include <cstdint>

#include "comm/reduce/reduce.hpp"

namespace slip {

enum class Stance : std::uint32_t {
  kNothing,  // the others need nothing of this rank where it lies
  kPrivate,  // they would, and cannot reach it
  kOffered,  // they would, and can
};

// Where memory of a rank is for the others.
struct Reach {
  static constexpr std::uint32_t kNowhere = 0, kAddress = ~std::uint32_t{0};  // kAddress: all are one process

  std::uint64_t offset = 0;  // in the segment; or the address
  std::uint32_t segment = kNowhere;
};

struct Offer {
  std::uint64_t input = 0, output = 0;  // offsets
  ReduceScale scale = {};               // this rank's factor
  std::uint32_t input_segment = Reach::kNowhere, output_segment = Reach::kNowhere;
  Stance stance = Stance::kNothing;
  std::uint32_t unused = 0;
};
static_assert(sizeof(Offer) == 40);

}  // namespace slip
