// DiskQueue: reads ranges of files in order with io_uring. It keeps the maximum number of blocks in flight, including
// blocks of the ranges that follow, so that the disk always has work. BlockReader uses it. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "store/blocks.hpp"

namespace slip::store {

class ReadRing;

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
