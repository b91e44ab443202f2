// Segment: memory that the ranks of one host share. It is a memfd that is passed over a Unix socket. So it needs no
// space in /dev/shm, has no name that could be left behind, and uses no more memory than is touched. Ranks of one
// process share one mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip {

class Segment {
 public:
  // The same zeroed memory for all of `ranks`, which are on one host and contain this one; the first of them makes it.
  // All of them must call this, in the same order relative to other calls. The error names a rank that is lost, has not
  // come before the deadline or failed.
  static Segment share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes, const SetupCall& call);
  static Segment share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes) {
    return share(bootstrap, ranks, bytes, bootstrap.call());
  }

  std::byte* data() const { return mapping_ ? mapping_->data : nullptr; }
  std::size_t bytes() const { return mapping_ ? mapping_->bytes : 0; }

  // Allocates the pages of a part now, so that using it cannot fail later. Throws kOutOfMemory.
  void commit(std::size_t offset, std::size_t bytes) const;
  // Returns the pages of a part to the system, for all processes that map it: it reads as zeros from now on.
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

// Reads memory of another process of this host with one copy by the kernel (process_vm_readv). False: not all was read;
// the process is gone, may not be read by this one, or has no such memory.
bool read_process(std::int32_t pid, std::uint64_t address, void* to, std::size_t bytes) noexcept;

}  // namespace slip
