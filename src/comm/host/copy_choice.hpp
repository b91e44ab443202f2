// CopyChoice: whether a rank offers its private buffers to its peers, which then let the kernel copy from them, or
// stages its data in shared memory. CallContext owns it; PeerBuffers and ProgramRunner use it.
//
// Small blocks are staged at first, and the kernel copies large ones. For each kind of call and each size class, one
// rank measures the calls and tries the other way now and then (Trials). If that is quicker, it sets a hint in shared
// memory, and all ranks follow the hint. If some ranks read an old hint, the call is correct but slower: some ranks
// stage their data late.
//
// Pipes choose with Trials, too: between copies through cells, and reads by the kernel.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "comm/api/call.hpp"

namespace slip::comm {

// Which of two ways to do the same is quicker on this machine. Calls take the usual way and now and then try the other
// one. A trial is compared with the call before it, so a slow period of the machine counts for both.
class Trials {
 public:
  // Whether the call of this number, from 0 on, tries the other way. The first calls do not, because new memory makes
  // them slow. Few of the next ones do, because a program may make only ten calls of a large size.
  static bool tries(std::uint64_t number) {
    constexpr std::uint64_t kEvery = 64;
    return number == 4 || number == 16 || number % kEvery == kEvery - 1;
  }
  // Notes the time of a call, in any fixed unit. A trial below 90 % of the usual time adds a win; another trial takes
  // one away, but not below 0. True: there are kWins wins, so the other way becomes the usual one.
  bool note(bool trial, double ticks) {
    constexpr double kClearly = 0.9;
    constexpr int kWins = 3;
    if (!trial || usual_ == 0) {
      if (!trial) usual_ = ticks;
      return false;
    }
    wins_ = ticks < kClearly * usual_ ? wins_ + 1 : std::max(wins_ - 1, 0);
    if (wins_ < kWins) return false;
    wins_ = 0;
    usual_ = ticks;
    return true;
  }

 private:
  double usual_ = 0;  // ticks of the last call in the usual way; 0: none yet
  int wins_ = 0;
};

enum class SingleCopy : std::uint8_t { kAuto, kAlways, kNever };

class CopyChoice {
 public:
  void set_mode(SingleCopy mode) { mode_ = mode; }
  // Whether the next call of its kind and size lets the kernel copy. All ranks call it for all such calls, in the same
  // order, so all ranks try the other way in the same calls. `other_way`: the hint, one bit for each size class: its
  // calls do not take the way that they took at first.
  bool wants_read(const Call& call, const std::atomic<std::uint32_t>& other_way) {
    if (mode_ != SingleCopy::kAuto) return mode_ == SingleCopy::kAlways;
    const bool usual = reads(call, other_way.load(std::memory_order_relaxed));  // relaxed: only a hint
    return usual != Trials::tries(times_of(call).calls++);
  }
  // The call took so long. `read`: the kernel copied.
  void note(const Call& call, bool read, std::uint64_t ticks, std::atomic<std::uint32_t>& other_way) {
    const std::uint32_t hint = other_way.load(std::memory_order_relaxed);
    const double each = static_cast<double>(ticks) / static_cast<double>(call.block_bytes());
    if (times_of(call).trials.note(read != reads(call, hint), each))
      other_way.store(hint ^ 1U << class_of(call), std::memory_order_relaxed);  // relaxed, both: only a hint
  }

 private:
  // From this size of a block on, the kernel copies at first. On two Xeons of 2.1 and 2.5 GHz, both ways take about the
  // same time at 32 to 64 KiB.
  static constexpr std::uint64_t kReadBytes = 64 << 10;
  static constexpr std::size_t kClasses = 32;
  struct Times {
    std::uint32_t calls = 0;  // only wants_read() uses it, in the thread that enqueues
    Trials trials;            // only note() uses it, in the thread that runs the call
  };

  static std::size_t class_of(const Call& call) {
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(call.block_bytes())), kClasses - 1);
  }
  // Whether calls of this class usually let the kernel copy.
  static bool reads(const Call& call, std::uint32_t other_way) {
    return (call.block_bytes() >= kReadBytes) != (((other_way >> class_of(call)) & 1) != 0);
  }
  Times& times_of(const Call& call) { return times_[static_cast<std::size_t>(call.kind)][class_of(call)]; }

  SingleCopy mode_ = SingleCopy::kAuto;
  std::array<std::array<Times, kClasses>, static_cast<std::size_t>(Collective::kMessage)> times_;
};

}  // namespace slip::comm
