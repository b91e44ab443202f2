// Segment: memory that the ranks of one host share. One rank makes a memfd and passes its descriptor to the others over
// a Unix socket. So a segment needs no space in /dev/shm, leaves no file behind after a crash, and uses memory only for
// pages that were touched. Ranks of one process share one mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/sync.hpp"
#include "transport/bootstrap/bootstrap.hpp"

namespace slip::transport {

class Segment {
 public:
  // Returns the same zeroed memory on all of `ranks`, which are on one host and include this rank. The first of them
  // makes the memory. All of them must call share(), in the same order relative to other calls. Errors name the rank
  // that is lost, failed, or has not joined before the deadline.
  static Segment share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes,
                       const SetupCall& asked = {});

  std::byte* data() const { return mapping_ ? mapping_->data : nullptr; }
  std::size_t bytes() const { return mapping_ ? mapping_->bytes : 0; }

  // Allocates the pages of a part now, so that an access cannot fail later. Throws kOutOfMemory.
  void commit(std::size_t offset, std::size_t bytes) const;
  // Returns the pages of a part to the system, for all processes that map the segment: the part reads as zeros from now
  // on.
  void drop(std::size_t offset, std::size_t bytes) const noexcept;

 private:
  struct Mapping : base::NoCopy {
    Mapping(int descriptor, std::size_t size);
    ~Mapping();

    std::byte* data = nullptr;
    const std::size_t bytes;
  };
  static Segment map(const std::string& name, int descriptor, std::size_t bytes);
  static Segment make(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes, const SetupCall& call);
  static Segment take(Bootstrap& bootstrap, int maker, std::size_t bytes, const SetupCall& call);

  std::shared_ptr<const Mapping> mapping_;  // null: share() did not make this segment
};

// Reads memory of another process of this host with one copy by the kernel (process_vm_readv). False: not all bytes
// were read, because the process is gone, has no such memory, or this process may not read it.
bool read_process(std::int32_t pid, std::uint64_t address, void* to, std::size_t bytes) noexcept;

}  // namespace slip::transport
