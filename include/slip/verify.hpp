// verify(): proves a plan correct before it runs. Any two ops that access the same bytes, at least one of them writing,
// must be ordered, and waits must not form a cycle. The proof holds for every launch whose bindings map different
// buffers to different buffers.
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
  kUnknown,  // an op declares no ranges, or waits for a flag that no op of the plan writes
};
const char* verdict_name(Verdict verdict);

// Ops are indices into Plan::nodes().
struct Verification {
  struct Race {
    std::uint32_t first = 0, second = 0;
    bool first_writes = false, second_writes = false;
    std::string_view buffer = {};
    std::uint64_t offset = 0, bytes = 0;  // in the buffer: the bytes that both access
  };
  // `op` waits for `other`.
  struct Wait {
    std::uint32_t op = 0, other = 0;
    friend bool operator==(const Wait&, const Wait&) = default;
  };

  Verdict verdict = Verdict::kProven;
  std::vector<Race> races;
  std::vector<Wait> missing;           // waits that would order every race; none of them can be omitted
  std::vector<Wait> superfluous;       // waits that no two ops need; all of them can be removed together
  std::vector<std::uint32_t> cycle;    // a cycle: each op waits for the next, the last for the first
  std::vector<std::uint32_t> unknown;  // ops that prevent a proof (kUnknown)

  bool proven() const { return verdict == Verdict::kProven; }
  std::string text(const Plan& plan) const;  // human-readable
};

Verification verify(const Plan& plan);

}  // namespace slip
