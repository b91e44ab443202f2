// MeetingFlags: which members of a Meeting have arrived. The flags are plain integers, so that a kernel of a GPU can be
// a member.
//
// Each member has its own flag, which is written once. A common counter would be wrong: a GPU's atomic operations on
// host memory are not atomic for the host.
#pragma once

#include <atomic>
#include <cstdint>

namespace slip::test {

struct MeetingFlags {
  static constexpr int kMax = 12;

  std::uint32_t arrived[kMax];  // 1: this member has arrived
  std::uint32_t missed;         // 1: a member waited until its deadline
  int expected;                 // the number of members
  std::atomic<int> next;  // the next free index of `arrived`. Only the host uses it: a kernel gets its index at launch
};

}  // namespace slip::test
