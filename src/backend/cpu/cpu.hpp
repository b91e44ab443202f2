// The `cpu` device: streams run by threads of the host.
#pragma once

#include "runtime/backend.hpp"

namespace slip {

std::vector<std::unique_ptr<Backend>> open_cpu(std::string_view rest, std::span<DeviceCore* const> cores);

}  // namespace slip
