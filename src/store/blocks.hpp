// A range of a file cut into blocks, and how one block gets from the disk to where it belongs, whoever calls the
// system: direct I/O wants more than was asked for, and the system may give less.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/file.hpp"

namespace slip {

// Where a range is to be, and how much room there is.
struct Landing {
  std::byte* memory = nullptr;
  std::size_t capacity = 0;  // bytes
};

// Of a read that failed: why, and where.
struct ReadFault {
  int error = 0;  // errno; 0: the file ended
  std::uint64_t offset = 0;
  std::size_t asked = 0, got = 0;  // bytes
};

// What is wanted: a range of a file, and where.
struct ReadRequest {
  const File* file = nullptr;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  Landing landing;
};

struct ReadRange {
  const File* file = nullptr;
  int descriptor = -1;
  std::size_t alignment = 1;  // of what is read through this descriptor
  std::uint64_t offset = 0;   // wanted
  std::size_t bytes = 0;
  std::byte* target = nullptr;
  Landing landing;

  std::uint64_t blocks(std::size_t block_bytes) const;
};

// The first byte's place in a landing: aligned as in the file if the range fits like that, else the landing's begin.
std::byte* place_in(const Landing& landing, std::uint64_t offset, std::size_t bytes, std::size_t alignment);

class ReadBlock {
 public:
  ReadBlock() = default;
  ReadBlock(const ReadRange& range, std::uint64_t index, std::size_t block_bytes);

  // What is wanted and not there yet.
  std::uint64_t offset() const { return offset_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* target() const { return target_; }
  void have(std::size_t bytes);  // these came from elsewhere

  // From here on by the disk: into place if the landing has room around it, else by way of `bounce`.
  void aim(const ReadRange& range, std::byte* bounce);
  bool bounces() const { return into_ != target_ - (offset_ - from_); }

  // The next call of the system.
  std::uint64_t next_offset() const { return from_ + got_; }
  std::byte* next_into() const { return into_ + got_; }
  std::size_t next_bytes() const { return span_ - got_; }

  enum class Step { kDone, kAgain, kFailed };
  // What the call returned, bytes or minus errno. kDone: the bytes are at the target.
  Step advance(const ReadRange& range, std::int64_t result, ReadFault& fault);

 private:
  std::uint64_t offset_ = 0;
  std::size_t bytes_ = 0;
  std::byte* target_ = nullptr;
  std::uint64_t from_ = 0;  // aligned, and what follows: where the system begins to read, how much, to where
  std::size_t span_ = 0;
  std::byte* into_ = nullptr;
  std::size_t got_ = 0;
};

}  // namespace slip
