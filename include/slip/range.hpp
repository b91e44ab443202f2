// Range: some bytes of one buffer. Ops declare what they read and write as ranges. A range is a view: it does not keep
// the buffer alive. It detects that its buffer was freed, because `id` then differs from the block's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace slip::runtime {
struct Block;  // the runtime's description of one allocation
}  // namespace slip::runtime

namespace slip {

class Buffer;

struct Range {
  runtime::Block* block = nullptr;
  std::uint64_t id = 0;  // of the buffer, when the range was made
  std::size_t offset = 0;
  std::size_t bytes = 0;

  // A part of this range. Throws kInvalidValue if it ends beyond this range.
  Range slice(std::size_t first, std::size_t count) const;
};

// A list of ranges as an argument. It refers to the caller's list, like std::string_view: use it within the call only.
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
