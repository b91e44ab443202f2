// Runs a program on a device of the library, with a host thread for each of its threads.
#pragma once

#include "stress/program.hpp"

namespace slip::stress {

Result run(const Program& program, const char* device, const DeviceOptions& options);

}  // namespace slip::stress
