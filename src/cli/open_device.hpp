// Devices as a user names them.
#pragma once

#include <string>

#include "slip/device.hpp"

namespace slip::cli {

// Throws UsageError for a device that is not there, with the reason and the names that there are.
Device open_device(const std::string& name, const DeviceOptions& options = {});

}  // namespace slip::cli
