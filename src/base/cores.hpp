// The cores that this process and this thread may use. A "core" is a CPU number of the operating system.
#pragma once

#include <bitset>
#include <cstdint>

namespace slip {

using CoreSet = std::bitset<1024>;
CoreSet core_set();  // that this process may use; processes of one host can compare their sets

int current_core();  // where this thread runs now: a hint, since it may move at any time. Takes a few nanoseconds
// Moves this thread to another core that it may use, if there is one. The system may move it back. Takes microseconds.
void leave_core(int core);
// How often the system took the core from this thread although it could run on. A system call.
std::int64_t preemptions();

}  // namespace slip
