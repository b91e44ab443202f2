// Memory of another process of this host, read by the kernel in one copy: where it lets a process look at another one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slip {

// False: not all of it was read. The process is gone, may not be looked at, or has no such memory.
bool read_process(std::int32_t pid, std::uint64_t address, void* to, std::size_t bytes) noexcept;

}  // namespace slip
