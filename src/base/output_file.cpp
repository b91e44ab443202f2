#include "base/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace slip {

OutputFile::OutputFile(const std::string& path, Here here) : path_(path), target_(path), here_(here) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail("cannot write", EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    written_ = target_;
  } else {
    const std::unique_ptr<char, void (*)(void*)> real(exists ? ::realpath(path.c_str(), nullptr) : nullptr, std::free);
    if (real) target_ = real.get();  // through a link the file is replaced, not the link
    written_ = fmt::format("{}.{}.tmp", target_, ::getpid());
  }
  // O_NOFOLLOW: nobody else's link may turn the file beside it into another one.
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (written_ != target_ ? O_NOFOLLOW : 0);
  file_ = ::open(written_.c_str(), flags, 0666);
  if (file_ < 0) fail("cannot open for writing", errno);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (!written_.empty() && written_ != target_) ::unlink(written_.c_str());
}

void OutputFile::fail(const char* what, int error) const {
  throw Error(Code::kIo, fmt::format("{} '{}': {}", what, path_, std::strerror(error)), here_);
}

void OutputFile::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("cannot write", count < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void OutputFile::finish() {
  // Some file systems report a full disk only here.
  if (::close(std::exchange(file_, -1)) != 0) fail("cannot write", errno);
  if (written_ != target_ && std::rename(written_.c_str(), target_.c_str()) != 0) fail("cannot rename to", errno);
  written_.clear();
}

}  // namespace slip
