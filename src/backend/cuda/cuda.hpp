// The `cuda` device: streams of a real GPU. table.cpp registers open_cuda(), which opens one backend for each
// DeviceCore.
#pragma once

#include "runtime/backend.hpp"

namespace slip::backend {

runtime::Backends open_cuda(std::string_view rest, runtime::Cores cores);

}  // namespace slip::backend
