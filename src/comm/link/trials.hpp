// Trials: which of two ways to do the same is quicker on this machine. Calls take the usual way and now and then try
// the other one. A trial is compared with the call before it, so a slow period of the machine counts for both.
#pragma once

#include <algorithm>
#include <cstdint>

namespace slip::comm {

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

}  // namespace slip::comm
