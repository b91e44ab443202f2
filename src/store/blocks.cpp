#include "store/blocks.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fail.hpp"

namespace slip::store {
namespace {

// Returns the address in a destination for the first byte of a range. It equals `offset` modulo the alignment, so that
// direct reads need no bounce buffer. If the range does not fit that way, it is the start of the destination.
std::byte* place_in(const Destination& destination, std::uint64_t offset, std::size_t bytes, std::size_t alignment) {
  const auto begin = reinterpret_cast<std::uintptr_t>(destination.memory);
  // The subtraction may wrap around, which is harmless, because the alignment is a power of two.
  const std::size_t shift = (offset - begin) % alignment;
  return shift <= destination.capacity && bytes <= destination.capacity - shift ? destination.memory + shift
                                                                                : destination.memory;
}

}  // namespace

ReadBlock::ReadBlock(const ReadRange& range, std::uint64_t index, std::size_t block_bytes)
    : offset_(std::max(range.offset, range.first_byte() + index * block_bytes)),
      bytes_(static_cast<std::size_t>(
          std::min(range.offset + range.bytes, range.first_byte() + (index + 1) * block_bytes) - offset_)),
      target_(range.target + (offset_ - range.offset)) {}

void ReadBlock::prepare_disk_read(const ReadRange& range, std::byte* bounce) {
  const std::uint64_t mask = range.alignment - 1;
  from_ = offset_ & ~mask;
  span_ = static_cast<std::size_t>(((offset_ + bytes_ + mask) & ~mask) - from_);
  got_ = 0;
  const std::size_t before = offset_ - from_, behind = span_ - before - bytes_;
  const auto& [memory, capacity] = range.destination;
  const bool fits = static_cast<std::size_t>(target_ - memory) >= before &&
                    static_cast<std::size_t>(memory + capacity - (target_ + bytes_)) >= behind;
  const bool aligned = (reinterpret_cast<std::uintptr_t>(target_) - before) % range.alignment == 0;
  into_ = fits && aligned ? target_ - before : bounce;
}

ReadBlock::Step ReadBlock::advance(const ReadRange& range, std::int64_t result, ReadFault& fault) {
  if (result == -EINTR || result == -EAGAIN) return Step::kAgain;
  if (result == -EINVAL && range.direct()) {  // the file system refuses a direct read: read through the page cache
    int error = 0;
    const std::size_t got = range.file->read_up_to(offset_, target_, bytes_, error);
    fault = {error, offset_, bytes_, got};
    return got == bytes_ ? Step::kDone : Step::kFailed;
  }
  const std::size_t before = offset_ - from_;
  const std::size_t total = got_ + static_cast<std::size_t>(std::max<std::int64_t>(result, 0));
  if (total >= before + bytes_) {
    if (bounces()) std::memcpy(target_, into_ + before, bytes_);
    return Step::kDone;
  }
  // A direct read returns a partial sector only at the end of the file.
  const std::size_t whole = total - total % range.alignment;
  if (result > 0 && whole > got_) {
    got_ = whole;
    return Step::kAgain;
  }
  fault = {result < 0 ? static_cast<int>(-result) : 0, offset_, bytes_, total > before ? total - before : 0};
  return Step::kFailed;
}

BlockIo::BlockIo(const ReaderOptions& options, Here here) : options_(options) {
  const std::size_t bytes = options_.in_flight * options_.block_bytes;
  bounces_.reset(static_cast<std::byte*>(std::aligned_alloc(kMaxDirectAlignment, bytes)));
  if (!bounces_) base::fail(ErrorCode::kOutOfMemory, here, "no memory for bounce buffers of {} bytes", bytes);
}

ReadRange BlockIo::range_of(const ReadRequest& request) const {
  const File& file = *request.file;
  const bool direct = options_.disk != ReaderOptions::Disk::kBuffered && file.direct_descriptor() >= 0;
  return {request, direct ? file.direct_descriptor() : file.descriptor(), direct ? file.direct_alignment() : 1,
          place_in(request.destination, request.offset, request.bytes, file.direct_alignment())};
}

bool BlockIo::all_cached(const ReadRequest& request) const {
  return options_.cache == ReaderOptions::Cache::kFirst &&
         store::all_cached(*request.file, request.offset, request.bytes);
}

bool BlockIo::none_cached(const ReadRange& range) const {
  return options_.cache == ReaderOptions::Cache::kNever || store::none_cached(*range.file, range.offset, range.bytes);
}

bool BlockIo::take_cached(const ReadRange& range, ReadBlock& block) {
  if (options_.cache == ReaderOptions::Cache::kNever) return false;
  const std::size_t got = read_cached(*range.file, block.offset(), block.target(), block.bytes());
  took_cached(got);
  block.mark_read(got);
  return block.bytes() == 0;
}

void BlockIo::count(const ReadRange& range, const ReadBlock& block) {
  (range.direct() ? direct_ : buffered_).fetch_add(block.bytes(), std::memory_order_relaxed);
  if (block.bounces()) bounced_.fetch_add(block.bytes(), std::memory_order_relaxed);
  // Drop the pages that this read brought into the page cache: they are not needed any more.
  if (!range.direct())
    ::posix_fadvise(range.descriptor, static_cast<off_t>(block.offset()), static_cast<off_t>(block.bytes()),
                    POSIX_FADV_DONTNEED);
}

}  // namespace slip::store
