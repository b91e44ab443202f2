// verify: proves a plan before it runs. Every two ops that touch the same bytes, one of them writing, must be ordered,
// and no op may wait for itself in a circle. What is proven holds for every launch whose bindings put different buffers
// in place of different buffers.
//
//   slip::Verification v = slip::verify(plan);
//   if (!v.proven()) puts(v.text(plan).c_str());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slip/plan.hpp"

namespace slip {

enum class Verdict : std::uint8_t {
  kProven,
  kRace,
  kDeadlock,
  kUnknown,  // an op declares no ranges, or waits for a word that nothing in the plan writes
};
const char* verdict_name(Verdict verdict);

// Ops are given by their index in Plan::nodes().
struct Verification {
  struct Race {
    std::uint32_t first = 0, second = 0;
    bool first_writes = false, second_writes = false;
    std::string_view buffer = {};
    std::uint64_t offset = 0, bytes = 0;  // of the buffer: what both touch
  };
  // `op` waits for `other`.
  struct Wait {
    std::uint32_t op = 0, other = 0;
    friend bool operator==(const Wait&, const Wait&) = default;
  };

  Verdict verdict = Verdict::kProven;
  std::vector<Race> races;
  std::vector<Wait> missing;          // waits that would order every race; none of them can be left out
  std::vector<Wait> superfluous;      // waits that no two ops need: they can all be removed
  std::vector<std::uint32_t> circle;  // each waits for the next, the last for the first
  std::vector<std::uint32_t> unknown;

  bool proven() const { return verdict == Verdict::kProven; }
  std::string text(const Plan& plan) const;  // for people
};

Verification verify(const Plan& plan);

}  // namespace slip
