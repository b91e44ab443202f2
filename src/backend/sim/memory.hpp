// Memory of simulated devices: address space whose pages are allocated on first access, so that a device of 141 GB uses
// no memory by itself. Any thread may call these functions.
#pragma once

#include <cstddef>

namespace slip::sim {

// Returns zeroed memory. `untouched`: no thread will read or write it, so it is mapped without access (PROT_NONE).
void* map_memory(std::size_t bytes, bool untouched);
void unmap_memory(void* data, std::size_t bytes) noexcept;

// Makes the page of a flag readable and writable, although it was mapped as untouched.
void make_accessible(void* flag);

}  // namespace slip::sim
