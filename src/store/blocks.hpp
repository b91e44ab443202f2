// ReadBlock: one block of a range of a file, and the arguments of the system calls that read it. Direct I/O needs
// aligned offsets, so it reads more than was requested. A system call may return fewer bytes than it was asked for.
// DiskQueue (io_uring) and the threads of BlockReader use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/file.hpp"

namespace slip::store {

// The destination of a range, and the memory available there.
struct Landing {
  std::byte* memory = nullptr;
  std::size_t capacity = 0;  // bytes
};

// Why and where a read failed.
struct ReadFault {
  int error = 0;  // errno; 0: the file ended
  std::uint64_t offset = 0;
  std::size_t asked = 0, got = 0;  // bytes
};

// A range of a file to be read, and its destination.
struct ReadRequest {
  const File* file = nullptr;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  Landing landing;
};

struct ReadRange {
  const File* file = nullptr;
  int descriptor = -1;
  std::size_t alignment = 1;  // required alignment of reads through this descriptor
  std::uint64_t offset = 0;   // of the requested bytes
  std::size_t bytes = 0;
  std::byte* target = nullptr;
  Landing landing;

  std::uint64_t blocks(std::size_t block_bytes) const;
};

// Returns the address for the first byte in a landing. It has the same alignment as in the file if the range fits that
// way; otherwise it is the start of the landing.
std::byte* place_in(const Landing& landing, std::uint64_t offset, std::size_t bytes, std::size_t alignment);

class ReadBlock {
 public:
  ReadBlock() = default;
  ReadBlock(const ReadRange& range, std::uint64_t index, std::size_t block_bytes);

  // The requested bytes that have not been read yet.
  std::uint64_t offset() const { return offset_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* target() const { return target_; }
  void have(std::size_t bytes);  // marks the first `bytes` of them as read: they came from the page cache

  // Prepares reading the rest from the disk: directly to the target if the landing has room for the alignment,
  // otherwise through the buffer `bounce`.
  void aim(const ReadRange& range, std::byte* bounce);
  bool bounces() const { return into_ != target_ - (offset_ - from_); }

  // Arguments of the next system call.
  std::uint64_t next_offset() const { return from_ + got_; }
  std::byte* next_into() const { return into_ + got_; }
  std::size_t next_bytes() const { return span_ - got_; }

  enum class Step { kDone, kAgain, kFailed };
  // Handles the result of the call: the number of bytes, or minus errno. kDone: the bytes are at the target.
  Step advance(const ReadRange& range, std::int64_t result, ReadFault& fault);

 private:
  std::uint64_t offset_ = 0;
  std::size_t bytes_ = 0;
  std::byte* target_ = nullptr;
  // The read from the disk: its aligned offset, its length, its destination, and the bytes read so far.
  std::uint64_t from_ = 0;
  std::size_t span_ = 0;
  std::byte* into_ = nullptr;
  std::size_t got_ = 0;
};

}  // namespace slip::store
