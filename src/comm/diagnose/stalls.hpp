// Stalls: which ranks keep others waiting, read from the ledgers of all ranks that this process can see, over all their
// communicators. `slip ranks`, deadlock reports and timeouts use it. Pure functions of what was read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/ledger/ledger.hpp"

namespace slip {

class Bootstrap;

// A rank as its ledger describes it.
struct RankState {
  LedgerView view;
  char process = 0;  // the state of its process as in proc(5); 0: not known

  bool stopped() const { return process == 'T' || process == 't'; }
  bool waits() const { return view.in_call() && view.waits_for != kWaitsForNobody && alive(); }
  bool alive() const { return view.life == LedgerLife::kThere; }
};

std::string call_text(const LedgerView& view);          // of the call begun last
std::string communicator_text(const LedgerView& view);  // short
std::string seconds_text(std::int64_t ns);              // "4.2 s"
std::string state_word(const RankState& state);         // one or two words, for a table
std::int64_t in_state_ns(const RankState& state);       // for how long it has been in this state; 0: not known
std::string doing(const RankState& state);              // a predicate that follows "rank 2 " or "it "

// A rank that keeps others waiting, or ranks that wait for each other in a cycle.
struct Stall {
  enum class Kind {
    kMissingRank,       // others wait for a rank that does not wait itself
    kStopped,           // others wait for a rank whose process is stopped
    kDeadlock,          // a cycle of waits that nothing can end
    kPossibleDeadlock,  // a cycle, if a rank's host thread waits for the call that it is in; otherwise that thread ends
                        // it
    kEnded,             // a rank failed, aborted or left while others are in a call
  };
  Kind kind = Kind::kMissingRank;
  std::string text;
};

const char* stall_name(Stall::Kind kind);

// Cycles first. A rank that only waits for a rank that waits itself is not reported again.
std::vector<Stall> find_stalls(std::span<const RankState> ranks);

// For the error text of a missed deadline: "rank 2 (it ended ...), rank 3 (...)", and the cycle of waits if this rank
// is part of one. Reads the ledgers of processes of this host, which may even be stopped. Asks ranks of other hosts,
// which get a second to answer.
std::string missing_ranks_text(const Bootstrap& bootstrap, std::span<const int> ranks);

}  // namespace slip
