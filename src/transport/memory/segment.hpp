// Segment: memory that the ranks of one host share. It is a memfd, handed over a Unix socket, so it needs no room in
// /dev/shm, has no name that could be left behind, and takes no more memory than is touched. Ranks of one process have
// one mapping of it together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip {

class Segment {
 public:
  // The same zeroed memory for all of `ranks`, which are of one host and contain this one: the first of them makes it.
  // All of them call this, in the same order with regard to other calls. A rank that is lost, has not come before the
  // deadline or failed is named in the error.
  static Segment share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes, const SetupCall& call);
  static Segment share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes) {
    return share(bootstrap, ranks, bytes, bootstrap.call());
  }

  std::byte* data() const { return mapping_ ? mapping_->data : nullptr; }
  std::size_t bytes() const { return mapping_ ? mapping_->bytes : 0; }

  // Takes memory for a part now, whole pages, so that there is none missing when it is used. Throws kOutOfMemory.
  void commit(std::size_t offset, std::size_t bytes) const;
  // Gives the memory of a part back, for all who map it: it reads as zeros from now on.
  void drop(std::size_t offset, std::size_t bytes) const noexcept;

 private:
  struct Mapping {
    Mapping(int descriptor, std::size_t size);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data = nullptr;
    const std::size_t bytes;
  };
  static Segment map(const std::string& name, int descriptor, std::size_t bytes);
  static Segment make(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes, const SetupCall& call);
  static Segment take(Bootstrap& bootstrap, int maker, std::size_t bytes, const SetupCall& call);

  std::shared_ptr<const Mapping> mapping_;  // null: of 0 bytes
};

// Memory of another process of this host, read by the kernel in one copy: where it lets a process look at another one.
// False: not all of it was read. The process is gone, may not be looked at, or has no such memory.
bool read_process(std::int32_t pid, std::uint64_t address, void* to, std::size_t bytes) noexcept;

}  // namespace slip
