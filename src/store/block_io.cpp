#include "store/block_io.hpp"

#include <fcntl.h>

#include <algorithm>

#include "base/fail.hpp"
#include "store/file.hpp"

namespace slip::store {

using Cache = ReaderOptions::Cache;
using Disk = ReaderOptions::Disk;

BlockIo::BlockIo(const ReaderOptions& options, Here here) : options_(options) {
  const std::size_t bytes = options_.in_flight * options_.block_bytes;
  bounces_.reset(static_cast<std::byte*>(std::aligned_alloc(kMaxDirectAlignment, bytes)));
  if (!bounces_) base::fail(Code::kOutOfMemory, here, "no {} bytes to read blocks into", bytes);
}

ReadRange BlockIo::range_of(const ReadRequest& request) const {
  const File& file = *request.file;
  const bool direct = options_.disk != Disk::kBuffered && file.direct_descriptor() >= 0;
  return {.file = &file,
          .descriptor = direct ? file.direct_descriptor() : file.descriptor(),
          .alignment = direct ? file.direct_alignment() : 1,
          .offset = request.offset,
          .bytes = request.bytes,
          .target = place_in(request.landing, request.offset, request.bytes, file.direct_alignment()),
          .landing = request.landing};
}

bool BlockIo::all_cached(const ReadRequest& request) const {
  return options_.cache == Cache::kFirst && store::all_cached(*request.file, request.offset, request.bytes);
}

bool BlockIo::none_cached(const ReadRange& range) const {
  return options_.cache == Cache::kNever || store::none_cached(*range.file, range.offset, range.bytes);
}

bool BlockIo::take_cached(const ReadRange& range, ReadBlock& block) {
  if (options_.cache == Cache::kNever) return false;
  const std::size_t got = read_cached(*range.file, block.offset(), block.target(), block.bytes());
  took_cached(got);
  block.have(got);
  return block.bytes() == 0;
}

void BlockIo::took_cached(std::size_t bytes) { cached_.fetch_add(bytes, std::memory_order_relaxed); }

std::int64_t BlockIo::allowed(const ReadRange& range, const ReadBlock& block) const {
  const auto most = static_cast<std::int64_t>(block.next_bytes());
  if (!options_.interfere) return most;
  const std::int64_t allowed = options_.interfere(block.next_offset(), block.next_bytes());
  return allowed < 0 ? allowed : std::min(most, allowed - allowed % static_cast<std::int64_t>(range.alignment));
}

void BlockIo::count(const ReadRange& range, const ReadBlock& block) {
  const bool direct = range.descriptor != range.file->descriptor();
  (direct ? direct_ : buffered_).fetch_add(block.bytes(), std::memory_order_relaxed);
  if (block.bounces()) bounced_.fetch_add(block.bytes(), std::memory_order_relaxed);
  // Drop the pages that this read brought into the page cache: they are not needed any more.
  if (!direct)
    ::posix_fadvise(range.descriptor, static_cast<off_t>(block.offset()), static_cast<off_t>(block.bytes()),
                    POSIX_FADV_DONTNEED);
}

BlockReader::Counts BlockIo::counts() const {
  const auto value = [](const std::atomic<std::uint64_t>& sum) { return sum.load(std::memory_order_relaxed); };
  return {value(cached_), value(direct_), value(buffered_), value(bounced_)};
}

}  // namespace slip::store
