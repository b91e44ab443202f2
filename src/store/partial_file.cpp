#include "store/partial_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fail.hpp"
#include "store/file.hpp"

namespace slip::store {

PartialFile::PartialFile(const std::string& path, Here here) : path_(path), partial_(partial_path(path)), here_(here) {
  constexpr int kAttempts = 10;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (open_locked()) return;
  }
  base::fail(ErrorCode::kIo, here_, "'{}' was replaced by another process {} times while it was opened", partial_,
             kAttempts);
}

// False: after open() another process renamed or removed the file and released its lock. Then this lock is on a file
// that no longer has this name, perhaps on a finished one, which must not be written.
bool PartialFile::open_locked() {
  base::OwnedDescriptor file(::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (file.number() < 0) fail("cannot open for writing", errno);
  // flock, not a lock file: it ends with the process, however that ends.
  if (::flock(file.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) base::fail(ErrorCode::kIo, here_, "'{}' is being written by another process", partial_);
    fail("cannot lock", errno);
  }
  struct stat opened {};
  struct stat named {};
  if (::fstat(file.number(), &opened) != 0 || ::lstat(partial_.c_str(), &named) != 0) {
    if (errno != ENOENT) fail("cannot read the status of", errno);
    return false;
  }
  if (opened.st_dev != named.st_dev || opened.st_ino != named.st_ino) return false;
  file_ = std::move(file);
  size_ = static_cast<std::uint64_t>(opened.st_size);
  return true;
}

void PartialFile::fail(const char* what, int error) const {
  base::fail(ErrorCode::kIo, here_, "{} '{}': {}", what, partial_, std::strerror(error));
}

bool PartialFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  int error = 0;
  const std::size_t got = read_up_to(file_.number(), offset, into.data(), into.size(), error);
  if (error != 0) fail("cannot read", error);
  return got == into.size();
}

void PartialFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file_.number(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail("cannot write", put < 0 ? errno : ENOSPC);
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  size_ = std::max(size_, offset);
}

void PartialFile::truncate(std::uint64_t size) {
  if (::ftruncate(file_.number(), static_cast<off_t>(size)) != 0) fail("cannot truncate", errno);
  size_ = size;
}

void PartialFile::finish() {
  if (::fsync(file_.number()) != 0) fail("cannot write", errno);
  if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) return;
  // Some file systems do not support RENAME_NOREPLACE. There link() and unlink() replace it: link() also fails if the
  // name exists. They come second, because a process that is killed between the two calls leaves both names.
  const bool unsupported = errno == EINVAL || errno == ENOSYS;
  if (!unsupported || ::link(partial_.c_str(), path_.c_str()) != 0)
    base::fail(ErrorCode::kIo, here_, "cannot rename '{}' to '{}': {}", partial_, path_, std::strerror(errno));
  if (::unlink(partial_.c_str()) != 0) fail("cannot remove", errno);
}

void PartialFile::discard() noexcept { ::unlink(partial_.c_str()); }

}  // namespace slip::store
