#include "store/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace slip {
namespace {

struct stat status_of(int descriptor, const std::string& path, Here here) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0)
    throw Error(Code::kIo, fmt::format("cannot look at '{}': {}", path, std::strerror(errno)), here);
  return status;
}

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

FileState state_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_size),
          status.st_dev,
          status.st_ino,
          status.st_nlink,
          nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

// The change time counts, too: programs can set the modification time back, as tar and rsync do, and that itself
// changes the change time, which nobody can set. A name that was added or removed changes it as well; a file that
// another one has replaced still has its bytes for whoever has it open.
bool same_bytes(const FileState& a, const FileState& b) {
  return a.size == b.size && a.device == b.device && a.inode == b.inode && a.written_ns == b.written_ns &&
         (a.changed_ns == b.changed_ns || a.names != b.names);
}

// What direct I/O must be aligned to; 0: there is none. Kernels before 6.1 do not say, and every disk takes a page.
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

}  // namespace

File File::open(const std::string& path, Here here) {
  File file;
  file.path_ = path;
  // O_NONBLOCK: a pipe by this name must be refused, not waited for. Files do not care.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file.descriptor_ < 0)
    throw Error(Code::kIo, fmt::format("cannot open '{}': {}", path, std::strerror(errno)), here);
  const struct stat status = status_of(file.descriptor_, path, here);
  if (!S_ISREG(status.st_mode)) throw Error(Code::kIo, fmt::format("'{}' is not a file", path), here);
  file.state_ = state_of(status);
  // Whoever reads knows what comes next; the kernel's guesses would fill the page cache with what nobody asked for.
  ::posix_fadvise(file.descriptor_, 0, 0, POSIX_FADV_RANDOM);
  file.open_direct();
  return file;
}

// Opened by way of the first descriptor: it is the same file, whatever has the name by now.
void File::open_direct() {
  const int direct = ::open(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (direct < 0) return;
  const std::size_t alignment = alignment_of(direct);
  if (alignment == 0 || alignment > kMaxDirectAlignment) {
    ::close(direct);
    return;
  }
  direct_ = direct;
  direct_alignment_ = alignment;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(std::exchange(other.direct_, -1)),
      direct_alignment_(other.direct_alignment_),
      state_(other.state_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(direct_, other.direct_);
  std::swap(direct_alignment_, other.direct_alignment_);
  std::swap(state_, other.state_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (direct_ >= 0) ::close(direct_);
}

void File::read(std::uint64_t offset, void* into, std::size_t bytes, Here here) const {
  auto* at = static_cast<char*>(into);
  std::size_t left = bytes;
  while (left > 0) {
    const ssize_t got = ::pread(descriptor_, at, left, static_cast<off_t>(offset + (bytes - left)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(Code::kIo,
                  fmt::format("cannot read {} bytes at {} of '{}': {}", bytes, offset, path_, std::strerror(errno)),
                  here);
    if (got == 0)
      throw Error(Code::kIo,
                  fmt::format("'{}' ends {} bytes into the {} bytes at {}: it was cut short (it had {})", path_,
                              bytes - left, bytes, offset, size()),
                  here);
    at += got;
    left -= static_cast<std::size_t>(got);
  }
}

void File::require_unchanged(Here here) const {
  const struct stat status = status_of(descriptor_, path_, here);
  if (same_bytes(state_of(status), state_)) return;
  if (static_cast<std::uint64_t>(status.st_size) == size())
    throw Error(Code::kIo,
                fmt::format("'{}' was changed while it was being used: it has the same {} bytes of size, but was "
                            "written to, renamed or given other permissions since it was opened",
                            path_, size()),
                here);
  throw Error(Code::kIo,
              fmt::format("'{}' was changed while it was being used: {} bytes now, {} when it was opened", path_,
                          status.st_size, size()),
              here);
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
  if (error) throw Error(Code::kIo, fmt::format("cannot list '{}': {}", folder, error.message()), here);
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace slip
