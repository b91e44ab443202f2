#include "transport/ledger/ledger.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <span>
#include <string_view>

#include "base/clock.hpp"
#include "base/quantity_text.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "base/thread.hpp"
#include "transport/job/placement.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {
namespace {

// The ledger of this process. Its descriptor stays open, because other processes find the memory by it, under /proc.
struct ProcessMemory : base::NoCopy {
  ProcessMemory() {
    const int number = descriptor.number();
    // Sealed: if the file could shrink, a process that maps it would get SIGBUS.
    if (number < 0 || ::ftruncate(number, static_cast<off_t>(kLedgerBytes)) != 0 ||
        ::fcntl(number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
      return;
    void* const data = ::mmap(nullptr, kLedgerBytes, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    if (data == MAP_FAILED) return;
    entries = reinterpret_cast<LedgerEntry*>(static_cast<std::byte*>(data) + sizeof(LedgerHeader));
    header = new (data) LedgerHeader;
    const Placement own = Placement::own();
    header->started = own.started;
    header->pid = own.pid;
    std::ranges::copy(own.host, header->host);
    // release: a reader that sees the magic sees the header.
    std::atomic_ref(header->magic).store(LedgerHeader::kMagic, std::memory_order_release);
  }
  ~ProcessMemory() {
    if (header) ::munmap(header, kLedgerBytes);
  }

  // Takes free entries round robin, so that readers can see the entries of departed ranks for a while.
  LedgerEntry* take() {
    const base::LockGuard lock(mutex);
    for (std::size_t tried = 0; entries && tried < used.size(); ++tried) {
      const std::size_t at = (next + tried) % used.size();
      if (used.test(at)) continue;
      used.set(at);
      next = at + 1;
      // relaxed: readers see a new entry that was not written yet as kFree, and a reused one as kLeft.
      const std::int32_t known = header->entries.load(std::memory_order_relaxed);
      header->entries.store(std::max(known, static_cast<std::int32_t>(at) + 1), std::memory_order_relaxed);
      return entries + at;
    }
    return nullptr;
  }
  void give_back(const LedgerEntry* entry) {
    const base::LockGuard lock(mutex);
    used.reset(static_cast<std::size_t>(entry - entries));
  }

  const OwnedDescriptor descriptor{::memfd_create(kLedgerName, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  LedgerHeader* header = nullptr;
  LedgerEntry* entries = nullptr;
  base::Mutex mutex;
  std::bitset<kLedgerEntries> used SLIP_GUARDED_BY(mutex);
  std::size_t next SLIP_GUARDED_BY(mutex) = 0;
};

base::SpinLock g_ledger_lock;
std::shared_ptr<ProcessMemory>& process_memory() SLIP_REQUIRES(g_ledger_lock) {
  static auto* const kMemory = new std::shared_ptr<ProcessMemory>;  // never destroyed: slots may outlive statics
  return *kMemory;
}

std::shared_ptr<ProcessMemory> ledger_of_process() {
  // A forked child gets its own ledger; the parent keeps writing to the old one.
  [[maybe_unused]] static const bool kForks = [] {
    base::at_fork([]() SLIP_ACQUIRE(g_ledger_lock) { g_ledger_lock.lock(); },
                  []() SLIP_RELEASE(g_ledger_lock) { g_ledger_lock.unlock(); },
                  []() SLIP_RELEASE(g_ledger_lock) {
                    // Leaks the parent's ledger: the child inherits it and does not use it.
                    new std::shared_ptr<ProcessMemory>(std::move(process_memory()));
                    g_ledger_lock.unlock();
                  });
    return true;
  }();
  const base::LockGuard lock(g_ledger_lock);
  if (!process_memory()) process_memory() = std::make_shared<ProcessMemory>();
  return process_memory();
}

// A seqlock writer for the fields that change rarely: while it exists, the version is odd.
class Change : base::NoCopy {
 public:
  explicit Change(LedgerEntry& entry) : entry_(entry) {
    std::uint64_t version = entry.version.load(std::memory_order_relaxed);
    // acquire: this thread sees what the last writer wrote. While another thread writes, this thread waits.
    for (base::Backoff backoff;
         (version & 1) != 0 || !entry.version.compare_exchange_weak(version, version + 1, std::memory_order_acquire,
                                                                    std::memory_order_relaxed);) {
      backoff.pause();
      version = entry.version.load(std::memory_order_relaxed);
    }
    base::full_fence();  // readers see the odd version before what follows
  }
  // release: a reader that sees the version sees what was written.
  ~Change() { entry_.version.fetch_add(1, std::memory_order_release); }

 private:
  LedgerEntry& entry_;
};

// relaxed: the caller holds a Change, whose version orders these stores.
void put_text(std::span<LedgerWord> words, std::string_view text) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = 0;
    const std::string_view piece = text.substr(std::min(text.size(), i * 8), 8);
    if (!piece.empty()) std::memcpy(&word, piece.data(), piece.size());
    words[i].store(word, std::memory_order_relaxed);
  }
}

// base::kAcquire is relaxed: LedgerSlot::view() calls acquire_fence() after all loads. With ThreadSanitizer, which does
// not support fences, it is an acquire load.
std::uint64_t word(const LedgerWord& from) { return from.load(base::kAcquire); }

void get_text(std::span<const LedgerWord> words, char* text) {
  for (const LedgerWord& one : words) {
    const std::uint64_t piece = word(one);
    std::memcpy(text, &piece, 8);
    text += 8;
  }
}

// The stream of a call; 0: not known. It is known if the call is one of the last kStreams calls. If all of these use
// the same stream, an older call is assumed to use it, too.
std::uint64_t stream_of(const LedgerEntry& entry, std::uint64_t number, std::uint64_t enqueued) {
  if (number == 0 || number > enqueued) return 0;
  if (enqueued - number < LedgerEntry::kStreams) return word(entry.streams[number % LedgerEntry::kStreams]);
  const std::uint64_t first = word(entry.streams[0]);
  return std::ranges::all_of(entry.streams, [&](const LedgerWord& one) { return word(one) == first; }) ? first : 0;
}

// The age of a time. Another process wrote the time, so it may be any number.
std::int64_t age(std::int64_t now, const LedgerWord& since) {
  const auto then = static_cast<std::int64_t>(word(since));
  return then <= 0 || then > now ? 0 : now - then;
}

// Reads a consistent set of the words of the current call. False: they did not match in any attempt.
bool read_call(const LedgerEntry& entry, int attempts, LedgerView& view) {
  base::Backoff backoff;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    view.ended = word(entry.ended);
    view.begun = word(entry.begun);
    view.call[0] = word(entry.call[0]);
    view.call[1] = word(entry.call[1]);
    view.enqueued = std::max(view.begun, word(entry.enqueued));
    const bool matches = view.begun == 0 || word(entry.check) == check_of_call(view.begun, view.call[0], view.call[1]);
    // `ended` may be above `begun`: a call ends without having begun if its communicator or its stream failed before.
    if (matches && view.ended <= view.enqueued && word(entry.ended) == view.ended) return true;
    backoff.pause();
  }
  return false;
}

// Reads all words of the entry except the version, which the caller compares before and after. False: read_call()
// failed.
bool read_words(const LedgerEntry& entry, const LedgerHeader& header, int attempts, LedgerView& view) {
  const std::int64_t now = base::host_ns();
  view = {};
  std::ranges::copy(header.host, view.host);
  view.life = static_cast<LedgerLife>(word(entry.life));
  view.communicator = word(entry.communicator);
  const std::uint64_t packed = word(entry.rank_and_count);
  view.rank = static_cast<std::int32_t>(packed & 0xffffffff);
  view.nranks = static_cast<std::int32_t>(packed >> 32);
  view.opened_ns = age(now, entry.opened_ns);
  get_text(entry.device, view.device);
  get_text(entry.name, view.name);
  get_text(entry.text, view.text);
  const bool is_consistent = read_call(entry, attempts, view);
  view.bytes = word(entry.bytes);
  view.stream = stream_of(entry, view.begun, view.enqueued);
  view.next_stream = stream_of(entry, std::max(view.begun, view.ended) + 1, view.enqueued);
  // acquire: `wait_ns` below is then that of this wait, or of a later one.
  const std::uint64_t waits = entry.waits_for.load(std::memory_order_acquire);
  if (in_call(view) && waits != 0 && waits <= INT32_MAX) view.waits_for = static_cast<std::int32_t>(waits - 1);
  view.waits_ns = view.waits_for == kWaitsForNoRank ? 0 : age(now, entry.wait_ns);
  view.begun_ns = word(entry.seen_begun) == view.begun ? age(now, entry.seen_begun_ns) : 0;
  view.ended_ns = word(entry.seen_ended) == view.ended ? age(now, entry.seen_ended_ns) : 0;
  view.looked_ns = age(now, entry.looked_ns);
  return is_consistent;
}

void clean(std::span<char> text) {
  const std::string_view raw(text.data(), ::strnlen(text.data(), text.size() - 1));
  const std::string printable = base::single_line_text(raw);  // never longer than `raw`, so it fits
  std::ranges::fill(text, '\0');
  std::ranges::copy(printable, text.begin());
}

}  // namespace

std::uint64_t check_of_call(std::uint64_t begun, std::uint64_t first, std::uint64_t second) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  return ((begun * kOdd ^ first) * kOdd ^ second) * kOdd;
}

void make_safe(LedgerView& view) {
  if (view.life > LedgerLife::kLeft) view.life = LedgerLife::kFree;
  view.rank = std::max(view.rank, 0);
  view.nranks = std::max(view.nranks, 0);
  view.waits_for = std::max(view.waits_for, kWaitsForNoRank);
  for (std::int64_t* age : {&view.waits_ns, &view.begun_ns, &view.ended_ns, &view.opened_ns, &view.looked_ns})
    *age = std::max<std::int64_t>(*age, 0);
  clean(view.device);
  clean(view.name);
  clean(view.host);
  clean(view.text);
}

LedgerSlot::LedgerSlot(const Identity& identity) {
  std::shared_ptr<ProcessMemory> ledger = ledger_of_process();
  entry_ = ledger->take();
  header_ = ledger->header;
  if (!entry_) {
    static const LedgerHeader kNone;
    private_ = std::make_unique<LedgerEntry>();
    entry_ = private_.get();
    header_ = &kNone;
  }
  ledger_ = std::move(ledger);
  const Change change(*entry_);
  // An entry consists of words only; the first is the version.
  auto* const words = reinterpret_cast<LedgerWord*>(entry_);
  for (std::size_t i = 1; i < sizeof(LedgerEntry) / sizeof(LedgerWord); ++i)
    words[i].store(0, std::memory_order_relaxed);
  const auto now = static_cast<std::uint64_t>(base::host_ns());
  entry_->life.store(static_cast<std::uint64_t>(LedgerLife::kJoined), std::memory_order_relaxed);
  entry_->communicator.store(identity.communicator, std::memory_order_relaxed);
  entry_->rank_and_count.store(
      static_cast<std::uint64_t>(identity.nranks) << 32 | static_cast<std::uint32_t>(identity.rank),
      std::memory_order_relaxed);
  entry_->opened_ns.store(now, std::memory_order_relaxed);
  entry_->looked_ns.store(now, std::memory_order_relaxed);
  put_text(entry_->device, identity.device);
  put_text(entry_->name, identity.name);
}

LedgerSlot::~LedgerSlot() {
  {
    const Change change(*entry_);
    entry_->life.store(static_cast<std::uint64_t>(LedgerLife::kLeft), std::memory_order_relaxed);
  }
  if (!private_) static_cast<ProcessMemory*>(ledger_.get())->give_back(entry_);
}

void LedgerSlot::wait(int rank) {
  const auto wanted = static_cast<std::uint64_t>(rank) + 1;
  if (entry_->waits_for.load(std::memory_order_relaxed) == wanted) return;
  entry_->wait_ns.store(static_cast<std::uint64_t>(base::host_ns()), std::memory_order_relaxed);
  entry_->waits_for.store(wanted, std::memory_order_release);  // release: see read_words()
}

void LedgerSlot::fail(LedgerLife life, std::string_view text) {
  const Change change(*entry_);
  if (entry_->life.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(LedgerLife::kJoined)) return;
  put_text(entry_->text, text);
  entry_->life.store(static_cast<std::uint64_t>(life), std::memory_order_relaxed);
}

LedgerView LedgerSlot::view() const {
  LedgerView view;
  base::Backoff backoff;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    // acquire: sees what was written before this version.
    const std::uint64_t version = entry_->version.load(std::memory_order_acquire);
    const bool is_consistent = read_words(*entry_, *header_, 1000, view);
    base::acquire_fence();  // all words are read before the version is read again
    view.pid = header_->pid;
    if ((version & 1) == 0 && is_consistent && entry_->version.load(std::memory_order_relaxed) == version) return view;
    backoff.pause();
  }
  view.life = LedgerLife::kFree;
  return view;
}

void LedgerSlot::look() {
  const auto now = static_cast<std::uint64_t>(base::host_ns());
  const auto note = [&](LedgerWord& seen, LedgerWord& seen_ns, const LedgerWord& present) {
    const std::uint64_t value = word(present);
    if (word(seen) == value) return;
    seen_ns.store(now, std::memory_order_relaxed);
    seen.store(value, std::memory_order_relaxed);
  };
  note(entry_->seen_begun, entry_->seen_begun_ns, entry_->begun);
  note(entry_->seen_ended, entry_->seen_ended_ns, entry_->ended);
  entry_->looked_ns.store(now, std::memory_order_relaxed);
}

namespace {

namespace fs = std::filesystem;

// Limits of the search: a process may have any number of descriptors, and of files with a ledger's name.
constexpr int kMaxDescriptors = 65'536, kMaxFiles = 16;
constexpr int kAttempts = 64;  // attempts to copy an entry while its process writes to it

// Uses pread, not mmap: reading a hole of a mapped memfd allocates memory, and raises SIGBUS if that fails.
bool read_at(int descriptor, std::size_t offset, void* into, std::size_t bytes) {
  return ::pread(descriptor, into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Copies an entry; true if the version was equal and even before and after. The fences keep the order of the three
// reads, which the kernel does on this CPU. Without them words of the entry could be older than the first version or
// newer than the last.
bool copy_entry(int descriptor, std::size_t offset, LedgerEntry& copy) {
  std::uint64_t before = 0, after = 0;
  if (!read_at(descriptor, offset, &before, sizeof(before)) || (before & 1) != 0) return false;
  base::full_fence();
  if (!read_at(descriptor, offset, &copy, sizeof(copy))) return false;
  base::full_fence();
  return read_at(descriptor, offset, &after, sizeof(after)) && after == before;
}

bool is_named_ledger(const fs::path& link) {
  std::error_code error;
  constexpr std::string_view kMemfd = "/memfd:";
  const std::string target = fs::read_symlink(link, error).string();
  return target.starts_with(kMemfd) && std::string_view(target).substr(kMemfd.size()).starts_with(kLedgerName);
}

// Checks a file that was opened with O_PATH. The link in /proc may point to another file by now: opening a pipe would
// block, and opening some devices has side effects.
bool is_ledger_file(const OwnedDescriptor& file) {
  struct stat found {};
  return file.number() >= 0 && ::fstat(file.number(), &found) == 0 && S_ISREG(found.st_mode) &&
         found.st_size == static_cast<off_t>(kLedgerBytes);
}

std::optional<ProcessLedger> find_ledger(int pid, LedgerLimits& limits) {
  const std::string number = std::to_string(pid);
  const ProcessState state = process_state(number);
  std::error_code error;
  int descriptors = 0, tried = 0;
  for (fs::directory_iterator files("/proc/" + number + "/fd", error), end;
       !error && files != end && descriptors < kMaxDescriptors && tried < kMaxFiles; files.increment(error)) {
    ++descriptors;
    if (!is_named_ledger(files->path())) continue;
    ++tried;
    const OwnedDescriptor found(::open(files->path().c_str(), O_PATH | O_CLOEXEC));
    if (!is_ledger_file(found)) continue;
    const std::string path = "/proc/self/fd/" + std::to_string(found.number());
    const OwnedDescriptor opened(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::optional<ProcessLedger> ledger = read_ledger_file(opened.number(), state.started, limits);
    if (!ledger) continue;
    ledger->pid = pid;
    ledger->process = state;
    ledger->process.program = base::single_line_text(state.program);
    for (LedgerView& view : ledger->ranks) view.pid = pid;
    return ledger;
  }
  return std::nullopt;
}

}  // namespace

int LedgerLimits::take(std::uint32_t user, int wanted) {
  const bool own = user == ::geteuid();
  int& taken = taken_[user];
  int allowed = std::min(wanted, (own ? kOwn : kOfOtherUser) - taken);
  if (!own) allowed = std::min(allowed, kOfAllOthers - taken_by_others_);
  allowed = std::max(allowed, 0);
  taken += allowed;
  if (!own) taken_by_others_ += allowed;
  return allowed;
}

std::optional<ProcessLedger> read_ledger_file(int descriptor, std::uint64_t started, LedgerLimits& limits) {
  struct stat found {};
  if (descriptor < 0 || ::fstat(descriptor, &found) != 0 || found.st_size != static_cast<off_t>(kLedgerBytes))
    return std::nullopt;
  // The owner of the file is the user who made it: only root can change the owner.
  if (found.st_uid != ::geteuid() && ::geteuid() != 0) return std::nullopt;
  LedgerHeader header;
  if (!read_at(descriptor, 0, &header, sizeof(header)) || header.magic != LedgerHeader::kMagic ||
      header.started != started || started == 0)
    return std::nullopt;
  ProcessLedger result;
  result.user = found.st_uid;
  const std::int32_t used = std::clamp(header.entries.load(std::memory_order_relaxed), 0, kLedgerEntries);
  const int allowed = limits.take(result.user, used);
  result.left_out = used - allowed;
  for (std::int32_t index = 0; index < allowed; ++index) {
    const std::size_t offset = sizeof(LedgerHeader) + static_cast<std::size_t>(index) * sizeof(LedgerEntry);
    LedgerEntry copy;
    LedgerView view;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      // Another process wrote the copy, so its words may have any value.
      if (!copy_entry(descriptor, offset, copy) || !read_words(copy, header, 1, view)) continue;
      make_safe(view);
      if (view.life != LedgerLife::kFree) result.ranks.push_back(view);
      break;
    }
  }
  return result;
}

std::optional<ProcessLedger> read_ledger(int pid) {
  LedgerLimits limits;
  return find_ledger(pid, limits);
}

std::vector<ProcessLedger> read_ledgers() {
  std::vector<int> pids;
  std::error_code error;
  for (fs::directory_iterator files("/proc", error), end; !error && files != end; files.increment(error)) {
    const std::string name = files->path().filename().string();
    if (const auto pid = base::parse_number(name, 1, 1 << 22)) pids.push_back(*pid);
  }
  std::ranges::sort(pids);
  LedgerLimits limits;
  std::vector<ProcessLedger> result;
  for (const int pid : pids) {
    if (std::optional<ProcessLedger> one = find_ledger(pid, limits)) result.push_back(std::move(*one));
  }
  return result;
}

}  // namespace slip::transport
