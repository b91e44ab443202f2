// The `cuda` device: streams of a real GPU. table.cpp registers open_cuda(), which opens one backend for each
// DeviceCore.
#pragma once

#include "runtime/backend.hpp"

namespace slip::backend {

std::vector<std::unique_ptr<runtime::Backend>> open_cuda(std::string_view rest,
                                                         std::span<runtime::DeviceCore* const> cores);

}  // namespace slip::backend
