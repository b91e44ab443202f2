// The `cuda` device: streams of a real GPU. table.cpp registers open_cuda(), which opens one backend for each
// DeviceCore.
#pragma once

#include "runtime/backend.hpp"

namespace slip {

std::vector<std::unique_ptr<Backend>> open_cuda(std::string_view rest, std::span<DeviceCore* const> cores);

}  // namespace slip
