// Whether a plan can be run: it is for this graph, all lies within its memory and nothing on what is still needed.
#pragma once

#include "slip/weights.hpp"

namespace slip {

// Throws kInvalidValue with the names and places. verify_weights proves the order of a plan that passes.
void check_plan(const WeightsPlan& plan, const Graph& graph, Here here);

}  // namespace slip
