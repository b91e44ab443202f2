// Sizes and rates of collectives as nccl-tests counts them.
#pragma once

#include <cstdint>
#include <string>

#include "comm/api/call.hpp"

namespace slip::cli {

std::uint64_t size_of(const std::string& text, const char* option);  // "8", "64K", "256MiB"; else a UsageError

// How much of a rank's data must pass a link at least: so that rates compare with those of links.
double bus_share(Collective kind, int nranks);

// Whether the size that is told is that of all blocks, not of one.
bool counts_all_blocks(Collective kind);

}  // namespace slip::cli
