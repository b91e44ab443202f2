// Generator: a random program from a seed, correct by construction: whenever a step would touch what an earlier one
// touched without being ordered after it, the edge that is missing is added first.
#pragma once

#include "stress/order.hpp"
#include "stress/program.hpp"

namespace slip::stress {

struct Shape {
  int max_devices = 2;
  int max_threads = 3;
  int steps = 50;
  bool host_edges = true;  // order by synchronising the host, too, not by events only
};

Program generate(std::uint64_t seed, const Shape& shape = {});

}  // namespace slip::stress
