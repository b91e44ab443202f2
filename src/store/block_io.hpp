// What every way of reading blocks shares: what the page cache has, how much of the disk's may be asked for, where a
// block that is not aligned is read to, and what is counted. Thread-safe.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>

#include "store/reader.hpp"

namespace slip {

class BlockIo {
 public:
  // Options as checked.
  BlockIo(const ReaderOptions& options, Here here);

  const ReaderOptions& options() const { return options_; }
  ReadRange range_of(const ReadRequest& request) const;
  bool all_cached(const ReadRequest& request) const;
  bool none_cached(const ReadRange& range) const;  // or none is to be taken

  // Copies what the page cache has of the block. True: that was all of it.
  bool take_cached(const ReadRange& range, ReadBlock& block);
  void took_cached(std::size_t bytes);
  // How many bytes the next call for this block may ask for, or minus errno.
  std::int64_t allowed(const ReadRange& range, const ReadBlock& block) const;
  // Of a block that has come from the disk.
  void count(const ReadRange& range, const ReadBlock& block);
  std::byte* bounce(std::size_t slot) const { return bounces_.get() + slot * options_.block_bytes; }
  BlockReader::Counts counts() const;

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const ReaderOptions options_;
  std::unique_ptr<std::byte, FreeMemory> bounces_;
  // Relaxed: sums that nobody orders by.
  std::atomic<std::uint64_t> cached_{0}, direct_{0}, buffered_{0}, bounced_{0};
};

}  // namespace slip
