// Finds stalls: ranks that keep others waiting, in all communicators of all ranks whose ledgers this process can read.
// `slip ranks`, deadlock reports and the errors of timeouts use them. Only missing_ranks_text() reads ledgers; the
// other functions depend on their arguments alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/ledger/ledger.hpp"

namespace slip::transport {

class Bootstrap;

}  // namespace slip::transport

namespace slip::comm {

// A rank as its ledger describes it.
struct RankState {
  transport::LedgerView view;
  char process = 0;  // the state of its process as in proc(5); 0: not known

  bool stopped() const { return process == 'T' || process == 't'; }
  bool waits() const { return in_call(view) && view.waits_for != transport::kWaitsForNoRank && alive(); }
  bool alive() const { return view.life == transport::LedgerLife::kJoined; }
};

std::string call_text(const transport::LedgerView& view);          // the call that began last
std::string communicator_id(const transport::LedgerView& view);    // the low 32 bits of its id, in hexadecimal
std::string communicator_text(const transport::LedgerView& view);  // "'tp' (7f01ab23)"; without a name the id alone
std::string seconds_text(std::int64_t ns);                         // "4.2 s"
std::string state_word(const RankState& state);                    // one or two words, for a table
std::int64_t in_state_ns(const RankState& state);  // how long the rank has been in this state; 0: not known
std::string doing(const RankState& state);         // a predicate that follows "rank 2 " or "it "

// A rank that keeps others waiting, or ranks that wait for each other in a cycle.
struct Stall {
  enum class Kind {
    kMissingRank,  // others wait for a rank that does not wait itself
    kStopped,      // others wait for a rank whose process is stopped
    kDeadlock,     // a cycle of waits that nothing can end
    // A cycle in which a rank has not made a call yet. It is a deadlock if the rank's host thread first waits for the
    // call of another communicator that it is in. Otherwise the thread makes the missing call, and the cycle ends.
    kPossibleDeadlock,
    kEnded,  // a rank failed, aborted or left while others are in a call
  };
  Kind kind = Kind::kMissingRank;
  std::string text;
};

const char* stall_name(Stall::Kind kind);

// Finds all stalls; cycles come first. Outside cycles, a rank that waits itself is not a cause, unless its process is
// stopped.
std::vector<Stall> find_stalls(std::span<const RankState> ranks);

// For the error text of a missed deadline: "rank 2 (it ended ...), rank 3 (...)", and the cycle of waits if this rank
// is part of one. Reads the ledgers of processes of this host, even of stopped ones. Asks the ranks whose ledgers it
// cannot read, for example on other hosts, and waits up to a second for their answers.
std::string missing_ranks_text(const transport::Bootstrap& bootstrap, std::span<const int> ranks);

}  // namespace slip::comm
