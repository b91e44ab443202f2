// What of a file is in the page cache, and taking it from there without touching the disk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/file.hpp"

namespace slip {

// Copies what is in the page cache from `offset` on, until the first byte that is not; returns how much. 0 as well
// where the system cannot tell.
std::size_t read_cached(const File& file, std::uint64_t offset, void* into, std::size_t bytes);

// True: all of it is in the page cache, as far as the system can tell without reading it.
bool all_cached(const File& file, std::uint64_t offset, std::size_t bytes);
// True: surely nothing of it is.
bool none_cached(const File& file, std::uint64_t offset, std::size_t bytes);

}  // namespace slip
