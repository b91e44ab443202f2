// Blocks, and how BlockReader reads them: with io_uring (DiskQueue) or with its threads.
//
// ReadBlock: one block of a range of a file, and the arguments of the system calls that read it. Direct I/O needs
// aligned offsets, so it reads more than was requested. A system call may return fewer bytes than it was asked for.
// BlockIo: reads from the page cache, bounce buffers for unaligned blocks, and counters.
// DiskQueue: reads ranges of files in order with io_uring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "store/file.hpp"

namespace slip::store {

struct ReaderOptions {
  enum class Cache { kFirst, kNever };
  enum class Disk {
    kBest,      // the first of the following that the machine and the file system support
    kRing,      // direct I/O with io_uring; the constructor throws if the system has no io_uring
    kThreads,   // direct I/O by the reader's threads
    kBuffered,  // through the page cache, from which the pages are dropped again
  };
  Cache cache = Cache::kFirst;
  Disk disk = Disk::kBest;
  std::size_t block_bytes = std::size_t{1} << 20;  // rounded up to a multiple of 64 KiB
  // Maximum number of blocks in flight; as many bounce buffers are allocated, for reads that are not aligned.
  unsigned in_flight = 16;
  unsigned threads = 4;  // including the caller
  // True: the threads of parallel loops (base/team.hpp) copy cached bytes in small pieces between two indices. So no
  // other threads compete with them for cores.
  bool by_team = false;
};

// Bytes read so far, by source.
struct ReadCounts {
  std::uint64_t cached = 0, direct = 0, buffered = 0;  // bytes
  std::uint64_t bounced = 0;                           // bytes of `direct` that went through a bounce buffer
};

// The destination of a range, and the memory available there.
struct Destination {
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
  Destination destination;
};

// The same with the descriptor to read through, and the address of the first byte.
struct ReadRange : ReadRequest {
  int descriptor = -1;
  std::size_t alignment = 1;  // required alignment of reads through this descriptor
  std::byte* target = nullptr;

  bool direct() const { return descriptor != file->descriptor(); }
  // Blocks begin here, at the first aligned byte, so that the range has as few of them as possible.
  std::uint64_t first_byte() const { return offset / alignment * alignment; }
  std::uint64_t blocks(std::size_t block_bytes) const {
    return bytes == 0 ? 0 : (offset + bytes - first_byte() + block_bytes - 1) / block_bytes;
  }
};

class ReadBlock {
 public:
  ReadBlock() = default;
  ReadBlock(const ReadRange& range, std::uint64_t index, std::size_t block_bytes);

  // The requested bytes that have not been read yet.
  std::uint64_t offset() const { return offset_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* target() const { return target_; }
  void mark_read(std::size_t bytes) {  // the first `bytes` of the requested bytes came from the page cache
    offset_ += bytes;
    bytes_ -= bytes;
    target_ += bytes;
  }

  // Prepares reading the rest from the disk: directly to the target if the destination has room for the alignment,
  // otherwise through the buffer `bounce`.
  void prepare_disk_read(const ReadRange& range, std::byte* bounce);
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

// Thread-safe.
class BlockIo {
 public:
  // REQUIRES: BlockReader has checked the options.
  BlockIo(const ReaderOptions& options, Here here);

  const ReaderOptions& options() const { return options_; }
  ReadRange range_of(const ReadRequest& request) const;
  bool all_cached(const ReadRequest& request) const;
  bool none_cached(const ReadRange& range) const;  // also true if the options forbid the page cache

  // Copies the part of the block that is in the page cache. True: that was the whole block.
  bool take_cached(const ReadRange& range, ReadBlock& block);
  void took_cached(std::size_t bytes) { cached_.fetch_add(bytes, std::memory_order_relaxed); }
  void count(const ReadRange& range, const ReadBlock& block);
  std::byte* bounce(std::size_t slot) const { return bounces_.get() + slot * options_.block_bytes; }
  ReadCounts counts() const {
    const auto value = [](const std::atomic<std::uint64_t>& sum) { return sum.load(std::memory_order_relaxed); };
    return {value(cached_), value(direct_), value(buffered_), value(bounced_)};
  }

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const ReaderOptions options_;
  std::unique_ptr<std::byte, FreeMemory> bounces_;
  // relaxed accesses: these are statistics and order nothing.
  std::atomic<std::uint64_t> cached_{0}, direct_{0}, buffered_{0}, bounced_{0};
};

class ReadRing;

// Reads ranges of files in order with io_uring. It keeps the maximum number of blocks in flight, including blocks of
// the ranges that follow, so that the disk always has work. One thread at a time.
class DiskQueue {
 public:
  // Null: the system has no io_uring.
  static std::unique_ptr<DiskQueue> open(BlockIo& io);
  ~DiskQueue();  // waits for the reads in flight: afterwards the kernel writes to no destination any more

  // Whether this range is the next one in the queue, so that parts of it may have been read.
  bool expects(const ReadRange& range) const;
  // Removes all ranges from the queue and waits for their reads in flight. Afterwards the kernel does not write to
  // their destinations any more.
  void end_all(Here here);

  // Returns when the range has been read or has failed. Returns the fault, or nothing if the range was read. `next`
  // returns the ranges that will be read later, in order; it is called when a slot is free for another block. REQUIRES:
  // expects(range), or the queue is empty.
  using Next = std::function<std::optional<ReadRange>()>;
  std::optional<ReadFault> read(const ReadRange& range, const Next& next, Here here);

 private:
  struct Entry {
    ReadRange range;
    bool cold = false;  // no page of it is in the page cache, so blocks are not checked one by one
    std::uint64_t blocks = 0, begun = 0;
    std::size_t in_flight = 0;
    std::optional<ReadFault> fault;  // the first fault
    bool all_begun() const { return fault || begun == blocks; }
    bool over() const { return all_begun() && in_flight == 0; }
  };
  struct Slot {
    ReadBlock block;
    Entry* entry = nullptr;
  };

  DiskQueue(BlockIo& io, std::unique_ptr<ReadRing> ring);
  void append(const ReadRange& range);
  void begin_blocks(const Next& next);
  void begin_blocks_of(Entry& entry);
  void submit(std::size_t slot);
  void complete(std::size_t slot, std::int64_t result);
  void release(std::size_t slot) {
    --slots_[slot].entry->in_flight;
    free_slots_.push_back(slot);
  }
  Entry& at(std::size_t index) { return entries_[(first_ + index) % entries_.size()]; }
  const Entry& at(std::size_t index) const { return entries_[(first_ + index) % entries_.size()]; }

  BlockIo& io_;
  std::unique_ptr<ReadRing> ring_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_, due_slots_;  // due: slots that need another system call
  std::vector<Entry> entries_;  // a ring buffer: count_ entries from first_ on, in the order of reading
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace slip::store
