// Reads the state of the ranks of this host from the ledgers of their processes, for `slip ranks` and the diagnosis of
// stalls. It needs no help from these processes, so it works even if they are stopped.
//
// A ledger is untrusted input: any user can make a memfd with that name. It is read only if the calling user owns it or
// is root. It is never mapped, and no more bytes are read than a ledger has, so a huge or sparse file costs nothing.
// The number of entries per user is limited, so no user can displace the entries of another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "transport/job/placement.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::transport {

struct ProcessLedger {
  int pid = 0;             // in the namespace of this process
  std::uint32_t user = 0;  // owner of the ledger
  ProcessState process;
  std::vector<LedgerView> ranks;  // after make_safe()
  int left_out = 0;               // entries beyond the limit of their user
};

// Limits the number of entries that are read, per user.
class LedgerLimits {
 public:
  static constexpr int kOwn = 16384, kOfOtherUser = 512, kOfAllOthers = 4096;

  // Returns how many of the `wanted` entries of this user may be read, and counts them as read.
  int take(std::uint32_t user, int wanted);

 private:
  std::map<std::uint32_t, int> taken_;
  int taken_by_others_ = 0;
};

// Reads the ledger in an open file. Nothing: it is not a ledger, this user may not read it, or it belongs to another
// process than the one that started at `started`. A forked child also has its parent's ledger open.
std::optional<ProcessLedger> read_ledger_file(int descriptor, std::uint64_t started, LedgerLimits& limits);

// Nothing: the process has no ledger, or this user may not read it.
std::optional<ProcessLedger> read_ledger(int pid);
// The ledgers of all processes that this user may read, ordered by pid.
std::vector<ProcessLedger> read_ledgers();

}  // namespace slip::transport
