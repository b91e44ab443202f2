// Copies on the GPU by the threads of several blocks: the widest accesses that both addresses allow, several of them in
// flight.
#pragma once

#include <cstdint>

#include "comm/cuda/cuda_kernels.hpp"

namespace slip::comm {

// The share of one block in the work of several.
struct BlockShare {
  std::uint32_t block = 0, blocks = 1;
};

// Divides `count` units into tiles, in which each thread has kInFlight units at a distance of kThreads, and the tiles
// among the blocks. Distances are constants, so that an access needs no address of its own. Calls `all(first unit)` for
// a whole tile, and `one(unit)` for each unit of the last one.
template <int kInFlight, class All, class One>
__device__ void for_each_tile(std::uint64_t count, BlockShare share, const All& all, const One& one) {
  constexpr std::uint64_t kTile = static_cast<std::uint64_t>(kInFlight) * kThreads;
  for (std::uint64_t tile = share.block; tile * kTile < count; tile += share.blocks) {
    const std::uint64_t first = tile * kTile + threadIdx.x;
    if ((tile + 1) * kTile <= count) {
      all(first);
    } else {
      for (std::uint64_t i = first; i < count; i += kThreads) one(i);
    }
  }
}

template <class Unit>
__device__ void copy_units(Unit* to, const Unit* from, std::uint64_t count, BlockShare share) {
  constexpr int kInFlight = 8;
  for_each_tile<kInFlight>(
      count, share,
      [&](std::uint64_t first) {
        Unit held[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) held[k] = __ldcs(from + first + k * kThreads);
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) __stcs(to + first + k * kThreads, held[k]);
      },
      [&](std::uint64_t i) { to[i] = from[i]; });
}

template <class Unit>
__device__ void copy_as(std::uint64_t to, std::uint64_t from, std::uint64_t bytes, BlockShare share) {
  auto* const out = reinterpret_cast<unsigned char*>(to);
  const auto* const in = reinterpret_cast<const unsigned char*>(from);
  const std::uint64_t before = (sizeof(Unit) - to % sizeof(Unit)) % sizeof(Unit);
  const std::uint64_t head = before < bytes ? before : bytes;
  const std::uint64_t units = (bytes - head) / sizeof(Unit), tail = head + units * sizeof(Unit);
  if (share.block == 0 && threadIdx.x < head) out[threadIdx.x] = in[threadIdx.x];
  copy_units(reinterpret_cast<Unit*>(out + head), reinterpret_cast<const Unit*>(in + head), units, share);
  if (share.block == 0 && threadIdx.x < bytes - tail) out[tail + threadIdx.x] = in[tail + threadIdx.x];
}

__device__ inline void copy_bytes(std::uint64_t to, std::uint64_t from, std::uint64_t bytes, BlockShare share) {
  if (to == from || bytes == 0) return;
  const std::uint64_t apart = to ^ from;
  if (apart % 16 == 0) copy_as<uint4>(to, from, bytes, share);
  else if (apart % 8 == 0) copy_as<unsigned long long>(to, from, bytes, share);
  else if (apart % 4 == 0) copy_as<unsigned int>(to, from, bytes, share);
  else if (apart % 2 == 0) copy_as<unsigned short>(to, from, bytes, share);
  else copy_as<unsigned char>(to, from, bytes, share);
}

}  // namespace slip::comm
