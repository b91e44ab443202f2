#include "cli/lab/random_order.hpp"

namespace slip::cli {

int wrong_in_random_orders(int seeds, const std::function<bool(const Device&)>& program) {
  int wrong = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Device device = Device::open("cpu", {.policy = Policy::kRandom, .seed = static_cast<std::uint64_t>(seed)});
    if (!program(device)) ++wrong;
  }
  return wrong;
}

}  // namespace slip::cli
