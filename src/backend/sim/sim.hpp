// The `sim` device: streams in virtual time, reproducible to the picosecond. Device::open("sim:...") opens one from a
// name, a path or a JSON text. Planners and predictions open one from a typed sim::Description.
#pragma once

#include "backend/sim/description.hpp"
#include "runtime/backend.hpp"

namespace slip::sim {

// The entry of the backend table. The devices opened by one call share one virtual time and the links between them.
runtime::Backends open_sim(std::string_view rest, runtime::Cores cores);

// Like Device::open and Device::open_all, with a description. A device is called "sim:" plus the description's name.
// Throws kInvalidValue if validate() refuses the description.
Device open_device(const Description& description, const DeviceOptions& options = {}, Here here = Here::at());
std::vector<Device> open_devices(const Description& description, int count, const DeviceOptions& options = {},
                                 Here here = Here::at());

}  // namespace slip::sim
