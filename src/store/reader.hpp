// BlockReader: ranges of files into memory, as fast as the disk gives them. What is in the page cache comes from there,
// copied by several threads; what is not is read past it, by direct I/O with many blocks in flight, so that a file
// larger than memory does not push out everything else.
//
// Thread-safe: reads of one reader take turns. Those that should go side by side have a reader each. Nothing is
// allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "store/blocks.hpp"
#include "store/file.hpp"

namespace slip {

struct ReaderOptions {
  enum class Cache { kFirst, kNever };
  enum class Disk {
    kBest,      // the first of these that the machine and the file's system have
    kRing,      // direct, through io_uring; refused at construction where there is none
    kThreads,   // direct, by the reader's threads
    kBuffered,  // through the page cache, from which it is dropped again
  };
  Cache cache = Cache::kFirst;
  Disk disk = Disk::kBest;
  std::size_t block_bytes = std::size_t{1} << 20;  // rounded up to 64 KiB
  unsigned in_flight = 16;                         // blocks; as many are allocated for reads that are not aligned
  unsigned threads = 4;                            // the caller among them
  // What is in the page cache is copied in small pieces by the threads that run loops (base/team.hpp), between their
  // indices, and not by threads that would take their cores.
  bool between_loops = false;
  // For tests: asked before each read of the disk, by any thread; returns how many bytes it may give at most, or minus
  // errno for an error.
  std::function<std::int64_t(std::uint64_t offset, std::size_t bytes)> interfere;
};

class BlockReader {
 public:
  explicit BlockReader(const ReaderOptions& options = {}, Here here = Here::at());
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // A range lands without being copied if the memory has room around it: with memory aligned to
  // file.direct_alignment() and room() bytes of it, the first wanted byte is at memory + lead(). The rest of the room
  // may be written to.
  static std::size_t lead(const File& file, std::uint64_t offset);
  static std::size_t room(const File& file, std::uint64_t offset, std::size_t bytes);

  // Returns where the first wanted byte is: as above where it fits, else at the landing's begin; a capacity of just
  // `bytes` always means the begin. Throws kInvalidValue for a range beyond the file or a landing too small, kIo with
  // the path, the place and the bytes if the disk fails or the file has been changed since it was opened; the
  // landing's bytes then mean nothing, and nobody writes to them any more.
  std::byte* read(const File& file, std::uint64_t offset, std::size_t bytes, Landing landing, Here here = Here::at());
  // The same, with what will be read after it: `next` is called when the disk could take more, and gives one request
  // after the other, each of which must then be read in its turn, by this function. From that call on its landing may
  // be written to, until it has been read, another read came in between, or the reader is gone.
  using Next = std::function<std::optional<ReadRequest>()>;
  std::byte* read(const ReadRequest& request, const Next& next, Here here = Here::at());

  // What came from where, so far.
  struct Counts {
    std::uint64_t cached = 0, direct = 0, buffered = 0;  // bytes
    std::uint64_t bounced = 0;                           // bytes of direct that were copied once more
  };
  Counts counts() const;
  bool has_ring() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
