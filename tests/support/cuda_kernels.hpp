// The kernels of the tests on a GPU: null functions, and no guests, in a build without CUDA.
//
// There are none for `fail` and `fault`: a kernel of a GPU cannot throw, and a real fault takes the context of the
// whole process away.
#pragma once

#include "slip/kernel.hpp"
#include "support/guests.hpp"

namespace slip::test::cuda {

#if SLIP_HAS_CUDA

// Once a GPU was opened, and before any stream is held: reserves the memory of all meetings. Allocating or freeing
// pinned memory later could wait for work that a test holds back.
void prepare();
// Fresh guests in memory that GPUs reach, good for the next thousands of meetings; null before prepare().
Guests* guests();

void store(const Args& args, CUstream_st* stream);
void mix(const Args& args, CUstream_st* stream);
void add(const Args& args, CUstream_st* stream);
void nothing(const Args& args, CUstream_st* stream);
// Comes to the meeting of the Guests in scalar 0; a missed meeting ends after 2 seconds.
void meet(const Args& args, CUstream_st* stream);

#else

inline void prepare() {}
inline Guests* guests() { return nullptr; }

inline constexpr void (*store)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*mix)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*add)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*nothing)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*meet)(const Args&, CUstream_st*) = nullptr;

#endif

}  // namespace slip::test::cuda
