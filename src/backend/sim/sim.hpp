// The `sim` device: the same streams in virtual time, repeatable to the picosecond. "sim:h200" takes a description from
// devices/, "sim:path/to/file.json" any other.
#pragma once

#include "runtime/backend.hpp"

namespace slip {

// The devices opened by one call share one world: one virtual time and the links between them.
std::vector<std::unique_ptr<Backend>> open_sim(std::string_view rest, std::span<DeviceCore* const> cores);

}  // namespace slip
