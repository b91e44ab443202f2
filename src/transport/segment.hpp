// Segment: memory that the ranks of one host share. It is a memfd, handed over a Unix socket, so it needs no room in
// /dev/shm, has no name that could be left behind, and takes no more memory than is touched.
#pragma once

#include <cstddef>
#include <span>

#include "transport/bootstrap.hpp"

namespace slip {

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // The same zeroed memory for all of `ranks`, which are of one host and contain this one: the first of them makes it.
  // All of them call this, in the same order with regard to other calls.
  static Segment share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // Takes memory for a part now, whole pages, so that there is none missing when it is used. Throws kOutOfMemory.
  void commit(std::size_t offset, std::size_t bytes) const;
  // Gives the memory of a part back, for all who map it: it reads as zeros from now on.
  void drop(std::size_t offset, std::size_t bytes) const noexcept;

 private:
  Segment(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  static Segment map(int descriptor, std::size_t bytes);
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace slip
