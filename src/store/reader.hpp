// BlockReader: reads ranges of files into memory at the speed of the disk; the weight loader uses it. Bytes in the page
// cache are copied from there by several threads. All others are read by direct I/O with many blocks in flight. So a
// file larger than memory does not evict everything else from the page cache.
//
// Thread-safe: reads of one reader are serialised; concurrent reads need a reader each. Nothing is allocated after
// construction.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "base/sync.hpp"
#include "store/blocks.hpp"

namespace slip::store {

class BlockReader {
 public:
  explicit BlockReader(const ReaderOptions& options = {}, Here here = Here::at());
  ~BlockReader();

  // A range is read without a copy if the memory has room for the alignment: the memory is aligned to
  // file.direct_alignment() and has room() bytes. Then the first requested byte is at memory + lead(), and all of the
  // room may be overwritten.
  static std::size_t lead(const File& file, std::uint64_t offset) { return offset % file.direct_alignment(); }
  static std::size_t room(const File& file, std::uint64_t offset, std::size_t bytes);

  // Returns the address of the first requested byte. This address equals `offset` modulo file.direct_alignment() if the
  // bytes fit into the destination that way; otherwise it is the start of the destination. With a capacity of exactly
  // `bytes` it is always the start. Throws kInvalidValue if the range is beyond the file or the destination too small.
  // Throws kIo with the path if the disk fails or the file was changed since it was opened. The bytes of the
  // destination are then undefined, and are not written any more.
  std::byte* read(const File& file, std::uint64_t offset, std::size_t bytes, Destination destination,
                  Here here = Here::at()) {
    return read({&file, offset, bytes, destination}, {}, here);
  }
  // The same with read-ahead. When the reader can have more blocks in flight, it calls `next`, which returns the
  // request after the last one, or nothing. The caller must then read these requests with this function, in the same
  // order. From the call of `next` on, the reader may write to the request's destination. It stops when that request
  // has been read, when another request is read instead, or when the reader is destroyed.
  using Next = std::function<std::optional<ReadRequest>()>;
  std::byte* read(const ReadRequest& request, const Next& next, Here here = Here::at());

  ReadCounts counts() const { return io_.counts(); }

 private:
  class ThreadGroup;

  void read_by_queue(const Next& next, Here here) SLIP_REQUIRES(reading_);
  void read_by_threads();
  bool copy_by_team();
  void read_blocks(unsigned member);
  std::int64_t read_once(const ReadBlock& block) const;
  void fail(const ReadFault& found) {
    const base::LockGuard lock(fault_mutex_);
    if (!failed()) fault_ = found;
    failed_.store(true, std::memory_order_relaxed);  // relaxed: fault_ is read when all threads have stopped
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }  // relaxed: it only ends the work early
  [[noreturn]] void throw_fault(Here here) const;

  BlockIo io_;
  base::Mutex reading_;  // held for a whole read
  std::unique_ptr<DiskQueue> queue_ SLIP_PT_GUARDED_BY(reading_);
  // `next` has returned a request that the queue does not read: it is cached, cannot use direct I/O, or is invalid. So
  // the queue reads no further ahead until the caller asks for this request.
  bool held_back_ SLIP_GUARDED_BY(reading_) = false;

  ReadRange range_;  // the range that is being read
  std::atomic<std::uint64_t> next_block_{0};
  std::atomic<bool> failed_{false};
  mutable base::Mutex fault_mutex_;
  ReadFault fault_ SLIP_GUARDED_BY(fault_mutex_);  // the first fault
  std::unique_ptr<ThreadGroup> threads_;           // last member: its threads use all others
};

}  // namespace slip::store
