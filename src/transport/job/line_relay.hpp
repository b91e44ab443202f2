// LineRelay: passes on what comes out of a pipe, line by line, each with a prefix, so that lines of different processes
// do not mix.
#pragma once

#include <string>

namespace slip {

class LineRelay {
 public:
  LineRelay() = default;
  // Owns `from`, which must not block; writes to `to`.
  LineRelay(int from, int to, std::string prefix) : from_(from), to_(to), prefix_(std::move(prefix)) {}
  ~LineRelay();
  LineRelay(LineRelay&& other) noexcept;
  LineRelay& operator=(LineRelay&&) = delete;

  void pump();    // what is there; closes at the end
  void finish();  // what is there, also a line without an end, and closes
  int descriptor() const { return from_; }

 private:
  void put(std::size_t bytes, bool whole);

  int from_ = -1, to_ = -1;
  std::string prefix_, pending_;
};

}  // namespace slip
