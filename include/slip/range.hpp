// Range: some bytes of one buffer, the unit in which ops say what they read and write. A view: it does not keep the
// buffer alive, and it knows when the buffer it was taken from has been freed (`id` no longer matches).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace slip {

struct Block;  // the runtime's description of one allocation
class Buffer;

struct Range {
  Block* block = nullptr;
  std::uint64_t id = 0;  // identity of the buffer when the range was taken
  std::size_t offset = 0;
  std::size_t bytes = 0;

  // A part of this range. Throws kInvalidValue when it reaches over the end.
  Range slice(std::size_t first, std::size_t count) const;
};

// A list of ranges as an argument. It refers to the caller's list, so use it within the call, as a string_view is used.
class Ranges {
 public:
  constexpr Ranges() = default;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
  constexpr Ranges(std::initializer_list<Range> list) : data_(list.begin()), size_(list.size()) {}
#pragma GCC diagnostic pop
  constexpr Ranges(std::span<const Range> list) : data_(list.data()), size_(list.size()) {}
  Ranges(const std::vector<Range>& list) : data_(list.data()), size_(list.size()) {}

  constexpr const Range* begin() const { return data_; }
  constexpr const Range* end() const { return data_ + size_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const Range& operator[](std::size_t i) const { return data_[i]; }

 private:
  const Range* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace slip
