// LedgerSeat: a rank's entry in the ledger of its process, a memfd named slip-ledger that `slip ranks` finds under
// /proc, and the witness that answers for the rank while its threads are stuck.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>


namespace slip {

// LedgerEntry: what one rank of one communicator is doing, in memory that other processes may read at any time, and
// LedgerView, a copy of it that makes sense anywhere.
//
// The rank pays for a few plain stores a call and reads no clock: times are put in by who waits long anyway, and by the
// thread of the rank's connections, which looks now and then. Everything is made of words, so that nothing is torn
// within one; what belongs together is tied: the call by a check word (no fence, whatever the order in which the stores
// arrive, words of two calls do not pass), who the rank is and why it failed by a version that is odd meanwhile.
enum class LedgerLife : std::uint64_t { kFree, kThere, kFailed, kAborted, kLeft };

inline constexpr int kWaitsForNobody = -1;

using LedgerWord = std::atomic<std::uint64_t>;
static_assert(LedgerWord::is_always_lock_free);  // so it means the same in every process

// All times are host_ns(). Each line of 64 bytes has one writer at a time.
struct alignas(64) LedgerEntry {
  static constexpr std::size_t kStreams = 6, kDeviceWords = 3, kTextWords = 64;

  // Who it is, and how it ended.
  LedgerWord version;
  LedgerWord life;
  LedgerWord communicator;
  LedgerWord place;  // rank, and in the upper half how many there are
  LedgerWord opened_ns;
  LedgerWord device[kDeviceWords];

  // Of who enqueues.
  LedgerWord enqueued;           // number of the last call
  LedgerWord bytes;              // of all calls so far
  LedgerWord streams[kStreams];  // of the last calls, by their number

  // Of who runs calls, one after the other.
  LedgerWord begun, call[2], check;  // check ties the first three
  LedgerWord ended;
  LedgerWord waits_for;  // 0: nobody; a rank + 1
  LedgerWord wait_ns;    // since when
  LedgerWord unused;

  // Of the thread that looks now and then: the last change that it saw, and when.
  LedgerWord seen_begun, seen_begun_ns, seen_ended, seen_ended_ns, looked_ns;
  LedgerWord unused_too[3];

  LedgerWord text[kTextWords];  // of a failure
};
static_assert(sizeof(LedgerEntry) == 4 * 64 + LedgerEntry::kTextWords * 8);

// What stands before the entries.
struct alignas(64) LedgerHeader {
  static constexpr std::uint64_t kMagic = 0x31524744454c5053;  // changes with the layout
  std::uint64_t magic = 0;
  std::uint64_t started = 0;  // of the process, as in Placement: a forked child has its parent's ledger open, too
  std::int32_t pid = 0;
  std::atomic<std::int32_t> entries{0};  // that have ever been used
  char host[64] = {};
};

// Trivially copyable: it travels to other hosts as it is. Ages instead of times, since clocks differ.
struct LedgerView {
  std::uint64_t communicator = 0;
  std::int32_t rank = 0, nranks = 0, pid = 0;
  std::int32_t waits_for = kWaitsForNobody;
  LedgerLife life = LedgerLife::kFree;
  std::uint64_t enqueued = 0, begun = 0, ended = 0, bytes = 0;
  std::uint64_t call[2] = {};               // the one begun last; a Signature
  std::uint64_t stream = 0;                 // of the call begun last
  std::uint64_t next_stream = 0;            // of the first that is enqueued and not begun; 0: none, or not known
  std::int64_t waits_ns = 0;                // for how long it has waited
  std::int64_t begun_ns = 0, ended_ns = 0;  // since the calls begun and ended last; at least, as far as it was seen
  std::int64_t opened_ns = 0;
  std::int64_t looked_ns = 0;  // since its process was surely running
  char device[LedgerEntry::kDeviceWords * 8 + 1] = {};
  char host[64] = {};
  char text[LedgerEntry::kTextWords * 8 + 1] = {};

  bool in_call() const { return begun > ended; }
};

// An entry of this process. False: the entry is free, or is written over and over while it is read.
bool read_entry(const LedgerEntry& entry, const LedgerHeader& header, LedgerView& view);

// A private copy of an entry, which another process wrote: its words may be anything. The view is safe (make_safe).
// False: the words of a call do not belong together. The caller compares versions.
bool read_copy(const LedgerEntry& copy, const LedgerHeader& header, LedgerView& view);

// For views that another process or host made: texts end, can be printed and are valid UTF-8, numbers are in range, and
// a life that does not exist is kFree.
void make_safe(LedgerView& view);

std::uint64_t check_of_call(std::uint64_t begun, std::uint64_t first, std::uint64_t second);

inline constexpr const char* kLedgerName = "slip-ledger";
inline constexpr std::int32_t kLedgerEntries = 512;
// Every ledger has this size: one of another size was made by another program.
inline constexpr std::size_t kLedgerBytes =
    sizeof(LedgerHeader) + static_cast<std::size_t>(kLedgerEntries) * sizeof(LedgerEntry);

class LedgerSeat {
 public:
  struct Who {
    std::uint64_t communicator = 0;
    int rank = 0, nranks = 1;
    std::string_view device;
  };
  // A process with more communicators than the ledger has entries, or that gets no memfd, writes where nobody looks.
  explicit LedgerSeat(const Who& who);
  ~LedgerSeat();  // the rank has left
  LedgerSeat(const LedgerSeat&) = delete;
  LedgerSeat& operator=(const LedgerSeat&) = delete;

  // Who enqueues, one at a time. relaxed, here and below: readers tie words together themselves.
  void enqueue(std::uint64_t number, std::uint64_t stream, std::uint64_t bytes) {
    entry_->streams[number % LedgerEntry::kStreams].store(stream, std::memory_order_relaxed);
    entry_->bytes.store(entry_->bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    entry_->enqueued.store(number, std::memory_order_relaxed);
  }

  // Who runs the call, one after the other. `call`: its signature.
  void begin(std::uint64_t number, std::uint64_t first, std::uint64_t second) {
    entry_->call[0].store(first, std::memory_order_relaxed);
    entry_->call[1].store(second, std::memory_order_relaxed);
    entry_->begun.store(number, std::memory_order_relaxed);
    entry_->check.store(check_of_call(number, first, second), std::memory_order_relaxed);
  }
  void end(std::uint64_t number) { entry_->ended.store(number, std::memory_order_relaxed); }
  void wait(int rank);  // has waited for long, and first of all for this one
  void wait_over() { entry_->waits_for.store(0, std::memory_order_relaxed); }

  // From any thread; the first one counts. `life`: kFailed or kAborted.
  void fail(LedgerLife life, std::string_view text);

  LedgerView view() const;
  void look();
  std::vector<std::byte> answer();

 private:
  std::shared_ptr<void> book_;  // keeps the memory
  std::unique_ptr<LedgerEntry> private_;
  LedgerEntry* entry_ = nullptr;
  const LedgerHeader* header_ = nullptr;
};

}  // namespace slip
