// Which part of this machine a process runs in, by the kernel's own small files: a tenth of a millisecond, where hwloc
// takes many.
#pragma once

#include <string>

#include "base/cores.hpp"

namespace slip {

// The number of the NUMA node that has all these cores; -1: several have, or the machine has one only.
int numa_node_of(const CoreSet& cores, const std::string& root = "/sys/devices/system/node");

// "0-3,8,10-11", as the kernel writes sets; empty for what is none.
CoreSet read_core_list(const std::string& text);

}  // namespace slip
