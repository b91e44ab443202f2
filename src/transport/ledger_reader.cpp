#include "transport/ledger_reader.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "transport/ledger.hpp"

namespace slip {
namespace {

namespace fs = std::filesystem;

// A ledger of another process, mapped to be read. Empty if it is none.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    struct stat found {};
    constexpr std::size_t kLeast = sizeof(LedgerHeader);
    // Only one that cannot shrink: reading behind its end would be the end of this process.
    const int seals = ::fcntl(descriptor, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) && ::fstat(descriptor, &found) == 0 &&
        static_cast<std::size_t>(found.st_size) >= kLeast) {
      bytes_ = static_cast<std::size_t>(found.st_size);
      void* const data = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor, 0);
      if (data != MAP_FAILED) data_ = static_cast<const std::byte*>(data);
    }
    ::close(descriptor);
  }
  ~Mapped() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const LedgerHeader* header() const {
    if (!data_) return nullptr;
    const auto* const header = reinterpret_cast<const LedgerHeader*>(data_);
    // acquire: with the magic all of the header is there. The cast: there is no atomic_ref of a const before C++26.
    auto& magic = const_cast<std::uint64_t&>(header->magic);
    if (std::atomic_ref(magic).load(std::memory_order_acquire) != LedgerHeader::kMagic) return nullptr;
    return header;
  }
  std::int32_t entries() const {
    const auto room = static_cast<std::int32_t>((bytes_ - sizeof(LedgerHeader)) / sizeof(LedgerEntry));
    return std::min(header()->entries.load(std::memory_order_relaxed), room);  // relaxed: each says whether it is there
  }
  const LedgerEntry& entry(std::int32_t index) const {
    return reinterpret_cast<const LedgerEntry*>(data_ + sizeof(LedgerHeader))[index];
  }

 private:
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

bool is_ledger(const fs::path& link) {
  std::error_code error;
  return fs::read_symlink(link, error).string().find(std::string("/memfd:") + kLedgerName) == 0;
}

}  // namespace

std::optional<ProcessLedger> read_ledger(int pid) {
  const std::string number = std::to_string(pid);
  std::error_code error;
  for (fs::directory_iterator files("/proc/" + number + "/fd", error), end; !error && files != end;
       files.increment(error)) {
    if (!is_ledger(files->path())) continue;
    const Mapped mapped(files->path().string());
    const LedgerHeader* const header = mapped.header();
    ProcessLedger result{pid, process_state(number), {}};
    if (!header || header->started != result.process.started) continue;  // its parent's
    for (std::int32_t index = 0; index < mapped.entries(); ++index) {
      LedgerView view;
      if (!read_entry(mapped.entry(index), *header, view)) continue;
      view.pid = pid;
      result.ranks.push_back(view);
    }
    return result;
  }
  return std::nullopt;
}

std::vector<ProcessLedger> read_ledgers() {
  std::vector<int> pids;
  std::error_code error;
  for (fs::directory_iterator files("/proc", error), end; !error && files != end; files.increment(error)) {
    const std::string name = files->path().filename().string();
    int pid = 0;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (wrong == std::errc() && rest == name.data() + name.size()) pids.push_back(pid);
  }
  std::ranges::sort(pids);
  std::vector<ProcessLedger> result;
  for (const int pid : pids) {
    if (std::optional<ProcessLedger> one = read_ledger(pid)) result.push_back(std::move(*one));
  }
  return result;
}

}  // namespace slip
