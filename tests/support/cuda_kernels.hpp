// The kernels of the tests on a GPU. In a build without CUDA the functions are null, and meeting_flags() returns null.
//
// `fail` and `fault` have no version for GPUs: a kernel of a GPU cannot throw, and a real fault destroys the CUDA
// context of the whole process.
#pragma once

#include "slip/kernel.hpp"
#include "support/meeting_flags.hpp"

namespace slip::test::cuda {

#if SLIP_HAS_CUDA

// Reserves the memory of all meetings (kernels that wait for each other, see meeting_flags.hpp). Call it when a GPU was
// opened, before a test blocks a stream: allocating or freeing pinned memory later could wait for the blocked work.
void prepare();
// The flags of a new meeting, in memory that GPUs can access; null before prepare(). They are reused after 4096 calls.
MeetingFlags* meeting_flags();

void store(const Args& args, CUstream_st* stream);
void mix(const Args& args, CUstream_st* stream);
void add(const Args& args, CUstream_st* stream);
void nothing(const Args& args, CUstream_st* stream);
// Joins the meeting whose MeetingFlags are scalar 0, and waits for the others for at most 2 seconds.
void meet(const Args& args, CUstream_st* stream);

#else

inline void prepare() {}
inline MeetingFlags* meeting_flags() { return nullptr; }

inline constexpr void (*store)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*mix)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*add)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*nothing)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*meet)(const Args&, CUstream_st*) = nullptr;

#endif

}  // namespace slip::test::cuda
