// Data of a benchmark whose result is known without computing it again: every rank repeats a few values of its own, so
// every result repeats what comes out for those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/api/call.hpp"

namespace slip::cli {

// How many blocks a rank gives and gets; of messages one each, to the next rank and from the one before.
Blocks bench_blocks(const Call& call, int rank, int nranks);
// What a rank gives: block b repeats the rank's values, begun at the b-th.
void fill_input(const Call& call, int rank, int nranks, std::span<std::byte> input);
// How many elements of a rank's output are not what they must be.
std::uint64_t count_wrong(const Call& call, int rank, int nranks, std::span<const std::byte> output);

}  // namespace slip::cli
