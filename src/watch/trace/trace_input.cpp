// Reads the bytes of a trace: from a text in memory, or from a file that may be compressed with gzip.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "base/fail.hpp"
#include "base/sync.hpp"
#include "watch/trace/trace_reader.hpp"

#if SLIP_HAS_ZLIB
#include <zlib.h>
#endif

namespace slip::watch {
namespace {

// gunzip(packed, ...) decompresses a source piece by piece. It throws kUnsupported if the library was built without
// zlib. Reading from it throws kParse if the file is damaged or truncated. `name` is for error messages.
#if SLIP_HAS_ZLIB

// A gzip file may consist of several members, one after the other.
class Inflater : base::NoCopy {
 public:
  Inflater(base::JsonReader::Source packed, const std::string& name, Here here)
      : packed_(std::move(packed)), name_(name), here_(here) {
    constexpr int kGzip = 16;  // zlib: added to windowBits, it selects the gzip format
    if (inflateInit2(&state_, MAX_WBITS + kGzip) != Z_OK)
      base::fail(ErrorCode::kOutOfMemory, here_, "unpacking '{}': no memory for zlib", name_);
  }
  ~Inflater() { inflateEnd(&state_); }

  // Reads up to `bytes` of the decompressed file; returns 0 at its end.
  std::size_t read(char* into, std::size_t bytes) {
    state_.next_out = reinterpret_cast<Bytef*>(into);
    state_.avail_out = static_cast<uInt>(std::min<std::size_t>(bytes, 1U << 30));
    const uInt wanted = state_.avail_out;
    while (state_.avail_out == wanted && take_more()) {
      const int result = inflate(&state_, Z_NO_FLUSH);
      inside_ = result != Z_STREAM_END;
      if (result == Z_STREAM_END) inflateReset(&state_);
      else if (result != Z_OK) fail(state_.msg ? state_.msg : "the data are damaged");
    }
    return wanted - state_.avail_out;
  }

 private:
  // False: the end of the file.
  bool take_more() {
    if (state_.avail_in > 0) return true;
    const std::size_t count = packed_(buffer_.data(), buffer_.size());
    state_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    state_.avail_in = static_cast<uInt>(count);
    if (count == 0 && inside_) fail("the file is cut short");
    return count > 0;
  }
  [[noreturn]] void fail(const char* why) const {
    base::fail(ErrorCode::kParse, here_, "cannot unpack '{}' (gzip): {}", name_, why);
  }

  base::JsonReader::Source packed_;
  const std::string name_;
  const Here here_;
  z_stream state_{};
  bool inside_ = true;  // inside a member that has not ended
  std::array<char, std::size_t{64} << 10> buffer_{};
};

base::JsonReader::Source gunzip(base::JsonReader::Source packed, const std::string& name, Here here) {
  const auto inflater = std::make_shared<Inflater>(std::move(packed), name, here);
  return [inflater](char* into, std::size_t bytes) { return inflater->read(into, bytes); };
}

#else

base::JsonReader::Source gunzip(base::JsonReader::Source, const std::string& name, Here here) {
  base::fail(ErrorCode::kUnsupported, here,
             "'{}' is compressed with gzip, and this program was built without zlib: unpack it with "
             "gunzip, or build again with zlib1g-dev installed",
             name);
}

#endif

// Reads the first two bytes, or fewer if the file is shorter.
std::string read_head(const base::JsonReader::Source& source) {
  char head[2] = {};
  std::size_t count = 0;
  for (std::size_t got = 1; got > 0 && count < sizeof(head); count += got)
    got = source(head + count, sizeof(head) - count);
  return {head, count};
}

// A source that returns the head first.
base::JsonReader::Source join(std::string head, base::JsonReader::Source rest) {
  return
      [head = std::move(head), rest = std::move(rest), taken = std::size_t{0}](char* into, std::size_t bytes) mutable {
        if (taken == head.size()) return rest(into, bytes);
        const std::size_t part = head.copy(into, bytes, taken);
        taken += part;
        return part;
      };
}

TraceData parse(base::JsonReader::Source source, std::size_t file_bytes, const std::string& name, Here here) {
  try {
    const std::string head = read_head(source);
    base::JsonReader::Source bytes = join(head, std::move(source));
    if (head == "\x1F\x8B") bytes = gunzip(std::move(bytes), name, here);
    base::JsonReader json(name, std::move(bytes), here);
    return read_trace_events(json, file_bytes);
  } catch (const std::bad_alloc&) {
    base::fail(ErrorCode::kOutOfMemory, here, "reading '{}': its records do not fit into memory", name);
  }
}

class InputFile : base::NoCopy {
 public:
  InputFile(const std::string& path, Here here) : path_(path), here_(here) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) fail("open");
  }
  ~InputFile() { ::close(file_); }

  std::size_t bytes() const {  // 0 if the size is unknown, for example of a pipe
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
    base::fail(ErrorCode::kIo, here_, "cannot {} '{}': {}", what, path_, std::strerror(errno));
  }
  const std::string& path_;
  Here here_;
  int file_ = -1;
};

}  // namespace

TraceData parse_trace(std::string_view text, const std::string& name, Here here) {
  return parse(base::JsonReader::from_text(text), text.size(), name, here);
}

}  // namespace slip::watch

namespace slip {
using namespace watch;

TraceData read_trace(const std::string& path, Here here) {
  const InputFile file(path, here);
  const auto source = [&file](char* into, std::size_t bytes) { return file.read(into, bytes); };
  return parse(source, file.bytes(), path, here);
}

}  // namespace slip
