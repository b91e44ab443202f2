// What the ranks of this host are doing, read from the ledgers of their processes. It needs nothing from them: they may
// be stopped. Processes of other users are not seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/ledger_entry.hpp"
#include "transport/placement.hpp"

namespace slip {

struct ProcessLedger {
  int pid = 0;  // as seen from here
  ProcessState process;
  std::vector<LedgerView> ranks;
};

// None if the process has no ledger, or if it cannot be looked at.
std::optional<ProcessLedger> read_ledger(int pid);
// Of all processes that can be looked at, by number.
std::vector<ProcessLedger> read_ledgers();

}  // namespace slip
