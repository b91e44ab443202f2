// What the ranks of this host are doing, read from the ledgers of their processes. It needs nothing from them: they may
// be stopped.
//
// A ledger is hostile input: any user can make a memfd with its name. It is read only if its owner is the calling user
// or the caller is root, only as many bytes as a ledger has, and never mapped, so that its size and its holes cost
// nothing. Each user has a limit of entries, so that a user can only crowd out own entries.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/job/placement.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip {

struct ProcessLedger {
  int pid = 0;             // as seen from here
  std::uint32_t user = 0;  // who made the ledger
  ProcessState process;
  std::vector<LedgerView> ranks;  // safe (make_safe)
  int left_out = 0;               // entries beyond the limit of their user
};

// How many entries are read, by user.
class LedgerLimits {
 public:
  static constexpr int kOwn = 16384, kOfOtherUser = 512, kOfAllOthers = 4096;

  // How many of so many entries of this user may be read; they count as read.
  int take(std::uint32_t user, int wanted);

 private:
  std::map<std::uint32_t, int> taken_;
  int taken_by_others_ = 0;
};

// The ledger behind an open file. None if it is no ledger, if it is of another process than the one that began at
// `started` (a forked child has its parent's open, too), or if this user may not read it.
std::optional<ProcessLedger> read_ledger_file(int descriptor, std::uint64_t started, LedgerLimits& limits);

// None if the process has no ledger, or if it cannot be looked at.
std::optional<ProcessLedger> read_ledger(int pid);
// Of all processes that can be looked at, by number.
std::vector<ProcessLedger> read_ledgers();

}  // namespace slip
