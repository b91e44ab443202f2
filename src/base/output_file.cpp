#include "base/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/fail.hpp"

namespace slip::base {
namespace {

// relaxed: set once, before other threads write files.
std::atomic<int> g_standard_output{STDOUT_FILENO};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string descriptor_path(int file) { return fmt::format("/proc/self/fd/{}", file); }

}  // namespace

OutputFile::OutputFile(const std::string& path, Here here) : path_(path), target_(path), here_(here) {
  if (path == "-") {
    file_ = ::fcntl(g_standard_output.load(std::memory_order_relaxed), F_DUPFD_CLOEXEC, 3);
    if (file_ < 0) fail("cannot write", errno);
    return;
  }
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail("cannot write", EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file_ < 0) fail("cannot open for writing", errno);
    return;
  }
  const std::unique_ptr<char, void (*)(void*)> real(exists ? ::realpath(path.c_str(), nullptr) : nullptr, std::free);
  if (real) target_ = real.get();  // write to the target of a symbolic link: do not replace the link itself
  if (open_unnamed()) return;
  temporary_ = fmt::format("{}.{}.tmp", target_, ::getpid());
  // O_NOFOLLOW: another user's symbolic link must not redirect the temporary file.
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_ < 0) {
    const int error = errno;
    temporary_.clear();
    fail("cannot open for writing", error);
  }
}

// Opens a file that has no name yet, so nothing is left if the process is killed before finish(). False: the file
// system does not support O_TMPFILE, or /proc, which give_temporary_name() needs, is missing.
bool OutputFile::open_unnamed() {
  file_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (file_ < 0) return false;
  if (::access(descriptor_path(file_).c_str(), F_OK) != 0) {
    ::close(std::exchange(file_, -1));
    return false;
  }
  unnamed_ = true;
  return true;
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* what, int error) const {
  const std::string where = path_ == "-" ? "the standard output" : fmt::format("'{}'", path_);
  base::fail(ErrorCode::kIo, here_, "{} {}: {}", what, where, std::strerror(error));
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

void OutputFile::write(std::string_view text) {
  if (!write_all(file_, text)) fail("cannot write", errno);
}

// Links the file under a temporary name first, because a link cannot replace a file, but a rename can, atomically. If a
// file with that temporary name exists, a killed process has left it.
void OutputFile::give_temporary_name() {
  std::string name = fmt::format("{}.{}.tmp", target_, ::getpid());
  const auto link = [&] {
    return ::linkat(AT_FDCWD, descriptor_path(file_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  if (!link() && (errno != EEXIST || ::unlink(name.c_str()) != 0 || !link())) fail("cannot write", errno);
  temporary_ = std::move(name);
}

void OutputFile::finish() {
  if (unnamed_) give_temporary_name();
  // Some file systems report a full disk only when the file is closed.
  if (::close(std::exchange(file_, -1)) != 0) fail("cannot write", errno);
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename to", errno);
  temporary_.clear();
}

void write_file(const std::string& path, std::string_view text, Here here) {
  OutputFile file(path, here);
  file.write(text);
  file.finish();
}

void check_output_path(const std::string& path, Here here) {
  struct stat status {};
  const bool exists = path != "-" && ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISFIFO(status.st_mode)) {
    if (::access(path.c_str(), W_OK) != 0)
      base::fail(ErrorCode::kIo, here, "cannot open for writing '{}': {}", path, std::strerror(errno));
    return;
  }
  const OutputFile file(path, here);
}

void reserve_standard_output() {
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const bool done = kept >= 0 && nowhere >= 0 && ::dup2(nowhere, STDOUT_FILENO) >= 0;
  const int error = errno;
  if (nowhere >= 0) ::close(nowhere);
  if (!done) base::fail(ErrorCode::kIo, {}, "cannot write to the standard output: {}", std::strerror(error));
  g_standard_output.store(kept, std::memory_order_relaxed);
}

}  // namespace slip::base
