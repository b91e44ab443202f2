// CopyChoice: whether a rank offers its private buffers to its peers, which then let the kernel copy from them, or
// stages its data in shared memory. CallContext owns it; PeerBuffers and ProgramRunner use it.
//
// Small blocks are staged at first, and the kernel copies large ones. For each kind of call and each size class, one
// rank measures the calls and tries the other way now and then. If that is quicker, it sets a hint in shared memory,
// and all ranks follow the hint. If some ranks read an old hint, the call is correct but slower: some ranks stage their
// data late.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "comm/api/call.hpp"
#include "comm/link/trials.hpp"

namespace slip::comm {

enum class SingleCopy : std::uint8_t { kAuto, kAlways, kNever };

class CopyChoice {
 public:
  void set_mode(SingleCopy mode) { mode_ = mode; }
  // Whether the next call of its kind and size lets the kernel copy. All ranks call it for all such calls, in the same
  // order, so all ranks try the other way in the same calls. `other_way`: the hint, one bit for each size class: its
  // calls do not take the way that they took at first.
  bool wants_read(const Call& call, const std::atomic<std::uint32_t>& other_way);
  // The call took so long. `read`: the kernel copied.
  void note(const Call& call, bool read, std::uint64_t ticks, std::atomic<std::uint32_t>& other_way);

 private:
  static constexpr std::size_t kClasses = 32;
  struct Times {
    std::uint32_t calls = 0;  // only wants_read() uses it, in the thread that enqueues
    Trials trials;            // only note() uses it, in the thread that runs the call
  };
  Times& times_of(const Call& call);

  SingleCopy mode_ = SingleCopy::kAuto;
  std::array<std::array<Times, kClasses>, static_cast<std::size_t>(Collective::kMessage)> times_;
};

}  // namespace slip::comm
