// The cores that this process and this thread may use. A "core" is a CPU number of the operating system.
#pragma once

#include <bitset>
#include <cstdint>

namespace slip {

using CoreSet = std::bitset<1024>;
CoreSet core_set();  // the cores that this process may use; processes of one host can compare their sets

// The core on which this thread runs: a hint, because it may move at any time. Takes a few nanoseconds.
int current_core();
// Moves this thread from `core` to another core that it may use, if there is one. The system may move it back. Takes
// microseconds.
void leave_core(int core);
// The number of involuntary context switches of this thread. Costs a system call.
std::int64_t preemptions();

}  // namespace slip
