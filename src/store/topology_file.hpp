// What a machine's topology comes from, without asking the environment.
#pragma once

#include "slip/topology.hpp"

namespace slip {

// This machine as hwloc sees it; asked once in a process, since that takes some milliseconds.
const TopoSystem& probed_topology(Here here);

}  // namespace slip
