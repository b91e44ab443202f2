#include "watch/trace/gzip.hpp"

#include <fmt/format.h>

#include <array>
#include <memory>

#if SLIP_HAS_ZLIB
#include <zlib.h>
#endif

namespace slip {

#if SLIP_HAS_ZLIB
namespace {

// Unpacks a gzip file, which may be several one after the other.
class Inflater {
 public:
  Inflater(JsonReader::Source packed, const std::string& name, Here here)
      : packed_(std::move(packed)), name_(name), here_(here) {
    constexpr int kGzip = 16;  // zlib: added to the window's bits
    if (inflateInit2(&state_, MAX_WBITS + kGzip) != Z_OK)
      throw Error(Code::kOutOfMemory, fmt::format("unpacking '{}': no memory for zlib", name_), here_);
  }
  ~Inflater() { inflateEnd(&state_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Up to `bytes` of the unpacked file; 0 at its end.
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
  // False at the end of the file.
  bool take_more() {
    if (state_.avail_in > 0) return true;
    const std::size_t count = packed_(buffer_.data(), buffer_.size());
    state_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    state_.avail_in = static_cast<uInt>(count);
    if (count == 0 && inside_) fail("the file is cut short");
    return count > 0;
  }
  [[noreturn]] void fail(const char* why) const {
    throw Error(Code::kParse, fmt::format("cannot unpack '{}' (gzip): {}", name_, why), here_);
  }

  JsonReader::Source packed_;
  const std::string name_;
  const Here here_;
  z_stream state_{};
  bool inside_ = true;  // of a member that has not ended
  std::array<char, std::size_t{64} << 10> buffer_{};
};

}  // namespace

JsonReader::Source unpacked(JsonReader::Source packed, const std::string& name, Here here) {
  const auto inflater = std::make_shared<Inflater>(std::move(packed), name, here);
  return [inflater](char* into, std::size_t bytes) { return inflater->read(into, bytes); };
}

#else

JsonReader::Source unpacked(JsonReader::Source, const std::string& name, Here here) {
  throw Error(Code::kUnsupported,
              fmt::format("'{}' is compressed with gzip, and this program was built without zlib: unpack it with "
                          "gunzip, or build again with zlib1g-dev installed",
                          name),
              here);
}

#endif

}  // namespace slip
