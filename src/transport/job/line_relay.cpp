#include "transport/job/line_relay.hpp"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace slip {
namespace {

constexpr std::size_t kMaxLine = std::size_t{64} << 10;  // longer ones are cut, so that memory stays small

void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(to, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;  // nobody reads any more
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

LineRelay::LineRelay(LineRelay&& other) noexcept
    : from_(std::exchange(other.from_, -1)),
      to_(other.to_),
      prefix_(std::move(other.prefix_)),
      pending_(std::move(other.pending_)) {}

LineRelay::~LineRelay() {
  if (from_ >= 0) ::close(from_);
}

void LineRelay::put(std::size_t bytes, bool whole) {
  write_all(to_, prefix_ + pending_.substr(0, bytes) + (whole ? "" : "\n"));
  pending_.erase(0, bytes);
}

void LineRelay::pump() {
  char bytes[16 << 10];
  while (from_ >= 0) {
    const ssize_t count = ::read(from_, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // nothing now
    if (count == 0) {
      ::close(std::exchange(from_, -1));
      if (!pending_.empty()) put(pending_.size(), false);
      return;
    }
    pending_.append(bytes, static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = pending_.find('\n')) != std::string::npos;) put(end + 1, true);
    if (pending_.size() > kMaxLine) put(pending_.size(), false);
  }
}

void LineRelay::finish() {
  pump();
  if (!pending_.empty()) put(pending_.size(), false);
  if (from_ >= 0) ::close(std::exchange(from_, -1));
}

}  // namespace slip
