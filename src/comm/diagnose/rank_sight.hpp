// RankSight: a rank as others see it, from its ledger, and what it is doing, in words.
#pragma once

#include <cstdint>
#include <string>

#include "transport/ledger/ledger.hpp"

namespace slip {

struct RankSight {
  LedgerView view;
  char process = 0;  // its state as in proc(5); 0: not known

  bool stopped() const { return process == 'T' || process == 't'; }
  bool waits() const { return view.in_call() && view.waits_for != kWaitsForNobody && alive(); }
  bool alive() const { return view.life == LedgerLife::kThere; }
};

std::string call_text(const LedgerView& view);          // of the call begun last
std::string communicator_text(const LedgerView& view);  // short
std::string seconds_text(std::int64_t ns);              // "4.2 s"
std::string state_word(const RankSight& sight);         // one or two words, for a table
std::int64_t in_state_ns(const RankSight& sight);       // for how long; 0: not known
std::string doing(const RankSight& sight);              // what may follow "rank 2 " or "it "

}  // namespace slip
