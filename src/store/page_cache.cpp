#include "store/page_cache.hpp"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

namespace slip {
namespace {

constexpr long kCachestat = 451;  // the same on every architecture; headers before 6.5 lack it
constexpr std::uint64_t kPage = 4096;

struct CachestatRange {
  std::uint64_t offset, bytes;
};
struct Cachestat {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;  // pages
};

// Pages of the range that are in the cache; nothing: the kernel does not say.
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

// tmpfs and others have no RWF_NOWAIT; what is cached can be read there all the same, at the risk of waiting for a page
// that was dropped just now.
std::size_t read_known_cached(const File& file, std::uint64_t offset, void* into, std::size_t bytes) {
  ssize_t got = read_now(file, offset, into, bytes);
  if (got < 0 && errno == EOPNOTSUPP) got = ::pread(file.descriptor(), into, bytes, static_cast<off_t>(offset));
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

}  // namespace

bool all_cached(const File& file, std::uint64_t offset, std::size_t bytes) {
  return pages_cached(file, offset, bytes) == pages_of(offset, bytes);
}

bool none_cached(const File& file, std::uint64_t offset, std::size_t bytes) {
  return pages_cached(file, offset, bytes) == 0;
}

// A refused RWF_NOWAIT starts readahead all the same (seen on Linux 6.18: 1 MiB asked, 256 pages read), which fills the
// cache that direct I/O spares and reads everything twice. So the kernel is asked first, by cachestat (6.5; it answers
// owners and writers only). Where it does not answer, one page is tried, which costs no more than itself.
std::size_t read_cached(const File& file, std::uint64_t offset, void* into, std::size_t bytes) {
  if (const std::optional<std::uint64_t> cached = pages_cached(file, offset, bytes))
    return *cached == pages_of(offset, bytes) ? read_known_cached(file, offset, into, bytes) : 0;
  const std::size_t first = std::min<std::size_t>(bytes, kPage - offset % kPage);
  if (read_now(file, offset, into, first) != static_cast<ssize_t>(first)) return 0;
  if (first == bytes) return bytes;
  const ssize_t more = read_now(file, offset + first, static_cast<std::byte*>(into) + first, bytes - first);
  return first + (more > 0 ? static_cast<std::size_t>(more) : 0);
}

}  // namespace slip
