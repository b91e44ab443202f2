// The ledger of a process: the state of each of its ranks, in shared memory that other processes can read at any time.
// It is a memfd named slip-ledger, which `slip ranks` finds under /proc.
//
// LedgerEntry: one rank of one communicator. LedgerView: a copy of an entry that is valid in any process and on any
// host. LedgerSlot: the object through which a rank writes its entry. ProcessLedger: all entries of a process, as
// another process reads them.
//
// A rank writes with a few relaxed stores per call, and reads no clock. After the constructor, times are written only
// by a thread that has waited long, and by the control thread, which reads the entry a few times per second. All fields
// are atomic 64-bit words, so no word is ever torn. The word `check`, a hash of the words of a call, detects a mix of
// two calls. So the stores of a call need no fence: they may become visible in any order. A version, odd during a
// change (a seqlock), protects the rank's identity and its failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/sync.hpp"
#include "transport/job/placement.hpp"

namespace slip::transport {

// kFree: no rank uses the entry. kJoined: the rank is a member of the communicator, and no call has failed.
enum class LedgerLife : std::uint64_t { kFree, kJoined, kFailed, kAborted, kLeft };

inline constexpr int kWaitsForNoRank = -1;

using LedgerWord = std::atomic<std::uint64_t>;
static_assert(LedgerWord::is_always_lock_free);  // so it works in memory shared by processes

// All times are host_ns(). Each cache line of 64 bytes has one writer at a time.
struct alignas(64) LedgerEntry {
  static constexpr std::size_t kStreams = 6, kDeviceWords = 3, kNameWords = 8, kTextWords = 64;

  // The rank's identity, and how it ended. Protected by the version.
  LedgerWord version;
  LedgerWord life;
  LedgerWord communicator;
  LedgerWord rank_and_count;  // the rank, and in the upper half the number of ranks
  LedgerWord opened_ns;       // when the rank joined the communicator
  LedgerWord device[kDeviceWords];
  LedgerWord name[kNameWords];  // of the communicator, as its program calls it; its first 64 bytes

  // Written by the enqueuing thread.
  LedgerWord enqueued;           // number of the last call
  LedgerWord bytes;              // of all calls so far
  LedgerWord streams[kStreams];  // of the last calls; index: number of the call % kStreams

  // Written by the thread that runs the calls, one after the other.
  LedgerWord begun, call[2], check;  // check: hash of the other three
  LedgerWord ended;
  LedgerWord waits_for;  // the rank + 1; 0: no rank
  LedgerWord wait_ns;    // when wait() wrote that rank: later than the wait began, because only long waits are written
  LedgerWord unused;

  // Written by the control thread: the last values of begun and ended that it observed, when it first observed them,
  // and when it last read the entry.
  LedgerWord seen_begun, seen_begun_ns, seen_ended, seen_ended_ns, looked_ns;
  LedgerWord unused_too[3];

  LedgerWord text[kTextWords];  // of a failure
};
static_assert(sizeof(LedgerEntry) == 5 * 64 + LedgerEntry::kTextWords * 8);

// The first bytes of the ledger; the entries follow.
struct alignas(64) LedgerHeader {
  static constexpr std::uint64_t kMagic = 0x32524744454c5053;  // changes when the layout changes
  std::uint64_t magic = 0;
  // Start time of the process, as in Placement. It distinguishes a forked child's own ledger from its parent's, which
  // the child also has open.
  std::uint64_t started = 0;
  std::int32_t pid = 0;
  std::atomic<std::int32_t> entries{0};  // all entries from this index on were never used
  char host[64] = {};
};

// Trivially copyable: it is sent to other hosts as bytes. It has ages instead of times, because the clocks of hosts
// differ.
struct LedgerView {
  std::uint64_t communicator = 0;
  std::int32_t rank = 0, nranks = 0, pid = 0;
  std::int32_t waits_for = kWaitsForNoRank;
  LedgerLife life = LedgerLife::kFree;
  std::uint64_t enqueued = 0, begun = 0, ended = 0, bytes = 0;
  std::uint64_t call[2] = {};               // the signature of the call begun last
  std::uint64_t stream = 0;                 // of the call begun last
  std::uint64_t next_stream = 0;            // of the first call that is enqueued and not begun; 0: none, or not known
  std::int64_t waits_ns = 0;                // for how long it has waited for `waits_for`; a lower bound
  std::int64_t begun_ns = 0, ended_ns = 0;  // age of the last begin and end; a lower bound
  std::int64_t opened_ns = 0;               // since the rank joined the communicator
  std::int64_t looked_ns = 0;               // since the process was last known to run
  char device[LedgerEntry::kDeviceWords * 8 + 1] = {};
  char name[LedgerEntry::kNameWords * 8 + 1] = {};
  char host[64] = {};
  char text[LedgerEntry::kTextWords * 8 + 1] = {};
};

inline bool in_call(const LedgerView& view) { return view.begun > view.ended; }

// Makes a view from another process or host safe: afterwards texts are terminated, printable and valid UTF-8, ranks and
// ages are not negative, and an unknown `life` becomes kFree. The rank may still be above `nranks`.
void make_safe(LedgerView& view);

std::uint64_t check_of_call(std::uint64_t begun, std::uint64_t first, std::uint64_t second);

inline constexpr const char* kLedgerName = "slip-ledger";
inline constexpr std::int32_t kLedgerEntries = 512;
// Every ledger has this size: a file of another size is not a ledger.
inline constexpr std::size_t kLedgerBytes =
    sizeof(LedgerHeader) + static_cast<std::size_t>(kLedgerEntries) * sizeof(LedgerEntry);

class LedgerSlot : base::NoCopy {
 public:
  struct Identity {
    std::uint64_t communicator = 0;
    int rank = 0, nranks = 1;
    std::string_view device;
    std::string_view name = {};  // of the communicator
  };
  // If the ledger is full, or the process gets no memfd, the slot writes to private memory that no other process reads.
  explicit LedgerSlot(const Identity& identity);
  ~LedgerSlot();  // writes that the rank has left, even if it failed before

  // Called by the enqueuing thread; one thread at a time. relaxed, here and below: readers check that the words belong
  // together.
  void enqueue(std::uint64_t number, std::uint64_t stream, std::uint64_t bytes) {
    entry_->streams[number % LedgerEntry::kStreams].store(stream, std::memory_order_relaxed);
    entry_->bytes.store(entry_->bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    entry_->enqueued.store(number, std::memory_order_relaxed);
  }

  // Called by the thread that runs the calls. `first`, `second`: the signature of the call.
  void begin(std::uint64_t number, std::uint64_t first, std::uint64_t second) {
    entry_->call[0].store(first, std::memory_order_relaxed);
    entry_->call[1].store(second, std::memory_order_relaxed);
    entry_->begun.store(number, std::memory_order_relaxed);
    entry_->check.store(check_of_call(number, first, second), std::memory_order_relaxed);
  }
  void end(std::uint64_t number) { entry_->ended.store(number, std::memory_order_relaxed); }
  void wait(int rank);  // the call has waited long; `rank`: the first rank that it waits for
  void wait_over() { entry_->waits_for.store(0, std::memory_order_relaxed); }

  // Any thread may call it; only the first failure is kept. `life`: kFailed or kAborted.
  void fail(LedgerLife life, std::string_view text);

  LedgerView view() const;  // its life is kFree if the entry changed during every attempt
  // Called by the control thread a few times per second: notes when it first observed the present call's begin or end.
  void look();

 private:
  std::shared_ptr<void> ledger_;  // keeps the memory alive
  std::unique_ptr<LedgerEntry> private_;
  LedgerEntry* entry_ = nullptr;
  const LedgerHeader* header_ = nullptr;
};

// The rest reads the ledgers of other processes of this host, for `slip ranks` and the diagnosis of stalls. It needs no
// help from these processes, so it works even if they are stopped.
//
// A ledger is untrusted input: any user can make a memfd with that name. It is read only if the calling user owns it,
// or if the calling user is root. It is never mapped, and no more bytes are read than a ledger has, so a huge or sparse
// file costs nothing. The number of entries per user is limited, so one user cannot displace the entries of another.

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
