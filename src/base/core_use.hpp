// How this thread and others share cores: where it runs, whether it had to stop, and how it goes elsewhere.
#pragma once

#include <cstdint>

namespace slip {

int current_core();  // that this thread runs on now: a hint, it may move at any time. Some nanoseconds
// Moves this thread to another core that it may use, if there is one; it may come back. Some microseconds.
void leave_core(int core);
void sleep_ns(std::int64_t time);  // below a second; not shorter, but longer by what the system rounds timers to
// How often the system took the core from this thread although it could go on. A system call.
std::int64_t preemptions();

}  // namespace slip
