// Memory of simulated devices: address space, backed by pages only where it is touched, so that a device of 141 GB
// costs nothing. Any thread.
#pragma once

#include <cstddef>

namespace slip::sim {

// Zeroed. `untouched`: nobody will read or write it, so the system is not even asked for the promise of pages.
void* map_memory(std::size_t bytes, bool untouched);
void unmap_memory(void* data, std::size_t bytes) noexcept;

// Makes the page of one word readable and writable after all.
void make_accessible(void* word);

}  // namespace slip::sim
