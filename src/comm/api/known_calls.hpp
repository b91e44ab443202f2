// KnownCalls: the small calls through shared memory that a rank made last. A program makes the same calls again and
// again, with the same buffers. issue_call() checks a call and chooses its program once, and reuses the result when the
// call is repeated. For 8 bytes, doing that again would take longer than the exchange itself. Communicator::State owns
// it.
#pragma once

#include <array>
#include <cstdint>

#include "comm/api/call.hpp"
#include "comm/plan/host_program.hpp"
#include "runtime/core.hpp"

namespace slip::comm {

// Whether the call is in place: input and output are the same, or the smaller one is this rank's part of the larger.
// `own`: the offset of that part in bytes.
inline bool is_in_place(const Range& to, const Range& from, std::uint64_t own) {
  if (from.bytes == to.bytes) return runtime::address(to) == runtime::address(from);
  return from.bytes > to.bytes ? runtime::address(to) == runtime::address(from) + own
                               : runtime::address(from) == runtime::address(to) + own;
}

// Whether a call of the device may use the memory for as long as it exists. Access to the memory of another device can
// be disabled, so it is checked for each call.
inline bool stays_accessible(const runtime::DeviceCore& core, const Range& range) {
  return range.block->core == &core || range.block->kind == MemoryKind::kPinned;
}

struct KnownCall {
  Call call;
  Range to, from;
  bool writes = false, reads = false;  // the call uses `to`, `from` on this rank
  // The id of its stream's device; 0: no call is kept here. Not the address of the device: after that device is closed,
  // the next one may get its address.
  std::uint32_t device = 0;
  HostProgramBuilder program{Call{}, 0, 0, 0, 1};

  bool is(const Call& other, const Range& other_to, const Range& other_from, std::uint32_t on) const {
    return device == on && same(from, other_from) && same(to, other_to) && call == other && is_alive(reads, from) &&
           is_alive(writes, to);
  }

 private:
  static bool same(const Range& a, const Range& b) {
    return a.block == b.block && a.id == b.id && a.offset == b.offset && a.bytes == b.bytes;
  }
  // relaxed: freeing a buffer while another thread issues work on it is a race of the caller.
  static bool is_alive(bool used, const Range& range) {
    return !used || range.block->id.load(std::memory_order_relaxed) == range.id;
  }
};

class KnownCalls {
 public:
  // The call with exactly these ranges, if it is known and its buffers still exist.
  KnownCall* find(const Call& call, const Range& to, const Range& from, std::uint32_t device) {
    KnownCall& kept = calls_[index(call, to, from)];
    return kept.is(call, to, from, device) ? &kept : nullptr;
  }
  void keep(const KnownCall& call) { calls_[index(call.call, call.to, call.from)] = call; }

 private:
  static constexpr int kLog2Calls = 4;

  static std::size_t index(const Call& call, const Range& to, const Range& from) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    const std::uint64_t ranges = (from.id + from.offset) * kOdd ^ (to.id + to.offset);
    return ((ranges * kOdd ^ call.elements) + static_cast<std::uint64_t>(call.kind)) * kOdd >> (64 - kLog2Calls);
  }

  std::array<KnownCall, 1 << kLog2Calls> calls_;
};

}  // namespace slip::comm
