// BlockIo: shared by the two ways to read blocks, io_uring (DiskQueue) and threads (BlockReader). It has reads from the
// page cache, the test hook, bounce buffers for blocks that are not aligned, and counters. Thread-safe.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>

#include "store/reader.hpp"

namespace slip::store {

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
  void took_cached(std::size_t bytes);
  // How many bytes the next system call for this block may request, or minus errno.
  std::int64_t allowed(const ReadRange& range, const ReadBlock& block) const;
  // Counts a block that was read from the disk.
  void count(const ReadRange& range, const ReadBlock& block);
  std::byte* bounce(std::size_t slot) const { return bounces_.get() + slot * options_.block_bytes; }
  BlockReader::Counts counts() const;

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const ReaderOptions options_;
  std::unique_ptr<std::byte, FreeMemory> bounces_;
  // relaxed accesses: these are statistics and order nothing.
  std::atomic<std::uint64_t> cached_{0}, direct_{0}, buffered_{0}, bounced_{0};
};

}  // namespace slip::store
