#include "transport/ledger/ledger_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/quantity_text.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {
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
      if (!copy_entry(descriptor, offset, copy) || !read_copy(copy, header, view)) continue;
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
