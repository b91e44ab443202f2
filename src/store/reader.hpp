// BlockReader: reads ranges of files into memory at the speed of the disk; the weight loader uses it. Bytes in the page
// cache are copied from there by several threads. All others are read by direct I/O with many blocks in flight. So a
// file larger than memory does not evict everything else from the page cache.
//
// Thread-safe: reads of one reader are serialised; concurrent reads need a reader each. Nothing is allocated after
// construction.
#pragma once

#include <functional>
#include <memory>
#include <optional>

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

  // Returns where the first requested byte is: as above if it fits, otherwise at the start of the landing. With a
  // capacity of exactly `bytes` it is always the start. Throws kInvalidValue if the range is beyond the file or the
  // landing too small. Throws kIo with the path, the offset and the bytes if the disk fails or the file was changed
  // since it was opened; the bytes of the landing are then undefined, and are not written any more.
  std::byte* read(const File& file, std::uint64_t offset, std::size_t bytes, Landing landing, Here here = Here::at());
  // The same with read-ahead. When more blocks can be in flight, the reader calls `next`, which returns the request
  // after the last one. The caller must then read these requests with this function, in the same order. From the call
  // of `next` on, the reader may write to the request's landing. It stops when that request has been read, when another
  // request is read instead, or when the reader is destroyed.
  using Next = std::function<std::optional<ReadRequest>()>;
  std::byte* read(const ReadRequest& request, const Next& next, Here here = Here::at());

  ReadCounts counts() const;
  bool has_ring() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace slip::store
