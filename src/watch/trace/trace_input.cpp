// Where the bytes of a trace come from: a text, or a file that may be compressed.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "watch/trace/gzip.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip {
namespace {

// The source with the first bytes that were taken from it put back.
class Peeked {
 public:
  explicit Peeked(JsonReader::Source source) : source_(std::move(source)) {
    while (count_ < sizeof(first_)) {
      const std::size_t got = source_(first_ + count_, sizeof(first_) - count_);
      if (got == 0) break;
      count_ += got;
    }
  }
  bool is_gzip() const { return count_ == 2 && first_[0] == '\x1F' && first_[1] == '\x8B'; }
  std::size_t read(char* into, std::size_t bytes) {
    if (taken_ == count_) return source_(into, bytes);
    const std::size_t part = std::min(bytes, count_ - taken_);
    std::memcpy(into, first_ + taken_, part);
    taken_ += part;
    return part;
  }

 private:
  JsonReader::Source source_;
  char first_[2] = {};
  std::size_t count_ = 0, taken_ = 0;
};

TraceData parse(JsonReader::Source source, std::size_t file_bytes, const std::string& name, Here here) {
  try {
    const auto peeked = std::make_shared<Peeked>(std::move(source));
    JsonReader::Source bytes = [peeked](char* into, std::size_t count) { return peeked->read(into, count); };
    if (peeked->is_gzip()) bytes = unpacked(std::move(bytes), name, here);
    JsonReader json(name, std::move(bytes), here);
    return read_trace_events(json, file_bytes);
  } catch (const std::bad_alloc&) {
    throw Error(Code::kOutOfMemory, fmt::format("reading '{}': its records do not fit into memory", name), here);
  }
}

class InputFile {
 public:
  InputFile(const std::string& path, Here here) : path_(path), here_(here) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) fail("open");
  }
  ~InputFile() { ::close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::size_t bytes() const {  // 0 if it is not known, as of a pipe
    struct stat status {};
    return ::fstat(file_, &status) == 0 && status.st_size > 0 ? static_cast<std::size_t>(status.st_size) : 0;
  }
  std::size_t read(char* into, std::size_t bytes) const {
    for (;;) {
      const ssize_t count = ::read(file_, into, bytes);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno != EINTR) fail("read");
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(Code::kIo, fmt::format("cannot {} '{}': {}", what, path_, std::strerror(errno)), here_);
  }
  const std::string& path_;
  Here here_;
  int file_ = -1;
};

}  // namespace

TraceData parse_trace(std::string_view text, const std::string& name, Here here) {
  return parse(JsonReader::from_text(text), text.size(), name, here);
}

TraceData read_trace(const std::string& path, Here here) {
  const InputFile file(path, here);
  const auto source = [&file](char* into, std::size_t bytes) { return file.read(into, bytes); };
  return parse(source, file.bytes(), path, here);
}

}  // namespace slip
