#include "store/file.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/fail.hpp"

namespace slip::store {
namespace {

struct stat status_of(int descriptor, const std::string& path, Here here) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0)
    base::fail(ErrorCode::kIo, here, "cannot read the status of '{}': {}", path, std::strerror(errno));
  return status;
}

bool same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

// Whether the open file still has the same bytes. Compares the change time, too: programs such as tar and rsync set the
// modification time back, which updates the change time, and no program can set that one. Adding or removing a hard
// link also updates the change time, so it is not compared if the number of links differs. That happens, for example,
// when another file replaces this one at its path.
bool same_bytes(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_dev == b.st_dev && a.st_ino == b.st_ino && same_time(a.st_mtim, b.st_mtim) &&
         (same_time(a.st_ctim, b.st_ctim) || a.st_nlink != b.st_nlink);
}

// The alignment for direct I/O, in bytes; 0: not supported. Kernels before 6.1 and some file systems do not report it;
// then it is 4096, which suits every disk.
std::size_t alignment_of(int descriptor) {
#if defined(STATX_DIOALIGN)
  struct statx status {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0)
    return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
#else
  static_cast<void>(descriptor);
#endif
  return 4096;
}

// System call number, the same on every architecture; headers before Linux 6.5 lack it.
constexpr long kCachestat = 451;
constexpr std::uint64_t kPage = 4096;

struct CachestatRange {
  std::uint64_t offset, bytes;
};
struct Cachestat {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;  // pages
};

// Number of pages of the range that are in the cache; nothing: the kernel does not report it.
std::optional<std::uint64_t> pages_cached(const File& file, std::uint64_t offset, std::size_t bytes) {
  const CachestatRange range{offset, bytes};
  Cachestat found{};
  if (::syscall(kCachestat, file.descriptor(), &range, &found, 0) != 0) return std::nullopt;
  return found.cached;
}

std::uint64_t pages_of(std::uint64_t offset, std::size_t bytes) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (offset + bytes + page - 1) / page - offset / page;
}

ssize_t read_now(const File& file, std::uint64_t offset, void* into, std::size_t bytes) {
  const iovec place{into, bytes};
  for (;;) {
    const ssize_t got = ::preadv2(file.descriptor(), &place, 1, static_cast<off_t>(offset), RWF_NOWAIT);
    if (got >= 0 || errno != EINTR) return got;
  }
}

// Reads bytes that were found in the page cache. File systems without RWF_NOWAIT, such as tmpfs, need a plain read,
// which may block if a page was just dropped.
std::size_t read_known_cached(const File& file, std::uint64_t offset, void* into, std::size_t bytes) {
  ssize_t got = read_now(file, offset, into, bytes);
  if (got < 0 && errno == EOPNOTSUPP) got = ::pread(file.descriptor(), into, bytes, static_cast<off_t>(offset));
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

}  // namespace

File File::open(const std::string& path, Here here) {
  File file;
  file.path_ = path;
  // O_NONBLOCK: opening a named pipe must fail instead of blocking. It has no effect on files.
  file.descriptor_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.descriptor() < 0) base::fail(ErrorCode::kIo, here, "cannot open '{}': {}", path, std::strerror(errno));
  file.state_ = status_of(file.descriptor(), path, here);
  if (!S_ISREG(file.state_.st_mode)) base::fail(ErrorCode::kIo, here, "'{}' is not a file", path);
  // BlockReader does its own read-ahead; the kernel's would only fill the page cache.
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM);
  file.open_direct();
  return file;
}

// Reopens the descriptor, not the path, so that both descriptors refer to the same file even if the path was replaced.
void File::open_direct() {
  base::OwnedDescriptor direct(
      ::open(fmt::format("/proc/self/fd/{}", descriptor()).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (direct.number() < 0) return;
  const std::size_t alignment = alignment_of(direct.number());
  if (alignment == 0 || alignment > kMaxDirectAlignment) return;
  direct_ = std::move(direct);
  direct_alignment_ = alignment;
}

void File::read(std::uint64_t offset, void* into, std::size_t bytes, Here here) const {
  int error = 0;
  const std::size_t got = read_up_to(descriptor(), offset, into, bytes, error);
  if (error != 0)
    base::fail(ErrorCode::kIo, here, "cannot read {} bytes at {} of '{}': {}", bytes, offset, path_,
               std::strerror(error));
  if (got < bytes)
    base::fail(ErrorCode::kIo, here,
               "'{}' ends {} bytes into the {} bytes at {}: it was cut short (it had {} bytes when opened)", path_, got,
               bytes, offset, size());
}

void File::require_unchanged(Here here) const {
  const struct stat status = status_of(descriptor(), path_, here);
  if (same_bytes(status, state_)) return;
  if (status.st_size == state_.st_size)
    base::fail(ErrorCode::kIo, here,
               "'{}' was changed while it was being used: it still has {} bytes, but was "
               "written to, renamed or given other permissions since it was opened",
               path_, size());
  base::fail(ErrorCode::kIo, here, "'{}' was changed while it was being used: {} bytes now, {} when it was opened",
             path_, status.st_size, size());
}

std::size_t read_up_to(int descriptor, std::uint64_t offset, void* into, std::size_t bytes, int& error) {
  std::size_t got = 0;
  for (error = 0; got < bytes && error == 0;) {
    const ssize_t more =
        ::pread(descriptor, static_cast<char*>(into) + got, bytes - got, static_cast<off_t>(offset + got));
    if (more == 0) break;
    if (more > 0) got += static_cast<std::size_t>(more);
    else if (errno != EINTR) error = errno;
  }
  return got;
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::vector<std::string> files_in(const std::string& folder, std::string_view ending, Here here) {
  std::vector<std::string> result;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::string name = at->path().filename().string();
    if (name.ends_with(ending)) result.push_back(std::move(name));
  }
  if (error) base::fail(ErrorCode::kIo, here, "cannot list '{}': {}", folder, error.message());
  std::ranges::sort(result);
  return result;
}

std::string read_text(const std::string& path, std::uint64_t max_bytes, const char* what, Here here) {
  const File file = File::open(path, here);
  if (file.size() > max_bytes)
    base::fail(ErrorCode::kParse, here, "'{}' has {} bytes: not {}", path, file.size(), what);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size(), here);
  return text;
}

bool all_cached(const File& file, std::uint64_t offset, std::size_t bytes) {
  return pages_cached(file, offset, bytes) == pages_of(offset, bytes);
}

bool none_cached(const File& file, std::uint64_t offset, std::size_t bytes) {
  return pages_cached(file, offset, bytes) == 0;
}

// An RWF_NOWAIT read that fails with EAGAIN still starts the kernel's read-ahead: on Linux 6.18, a request for 1 MiB
// reads 256 pages. That fills the page cache and reads everything twice. So cachestat is called first. It exists since
// Linux 6.5, and only the owner and writers of the file may call it. If cachestat fails, a read of one page is tried
// first: that starts no read-ahead beyond the page.
std::size_t read_cached(const File& file, std::uint64_t offset, void* into, std::size_t bytes) {
  if (const std::optional<std::uint64_t> cached = pages_cached(file, offset, bytes))
    return *cached == pages_of(offset, bytes) ? read_known_cached(file, offset, into, bytes) : 0;
  const std::size_t first = std::min<std::size_t>(bytes, kPage - offset % kPage);
  if (read_now(file, offset, into, first) != static_cast<ssize_t>(first)) return 0;
  if (first == bytes) return bytes;
  const ssize_t more = read_now(file, offset + first, static_cast<std::byte*>(into) + first, bytes - first);
  return first + (more > 0 ? static_cast<std::size_t>(more) : 0);
}

}  // namespace slip::store
