// LinePrefix: divides the output of a rank into lines and puts a prefix before each, so that lines of different ranks
// do not mix. With an empty prefix the bytes pass unchanged and at once, because progress bars write parts of lines.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace slip::transport {

class LinePrefix {
 public:
  explicit LinePrefix(std::string prefix = {}) : prefix_(std::move(prefix)) {}

  // The lines that these bytes complete.
  std::string add(std::string_view bytes) {
    if (prefix_.empty()) return std::string(bytes);
    std::string lines;
    for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1))
      lines += prefix_ + std::exchange(pending_, {}) + std::string(bytes.substr(0, end + 1));
    pending_ += bytes;
    if (pending_.size() > kMaxLine) lines += finish();
    return lines;
  }
  // The last line, if the output ended without a newline.
  std::string finish() { return pending_.empty() ? std::string() : prefix_ + std::exchange(pending_, {}) + "\n"; }

 private:
  static constexpr std::size_t kMaxLine = std::size_t{64} << 10;  // longer lines are split, to limit the memory

  const std::string prefix_;
  std::string pending_;
};

}  // namespace slip::transport
