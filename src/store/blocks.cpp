#include "store/blocks.hpp"

#include <fcntl.h>

#ifdef SLIP_HAS_LIBURING
#include <liburing.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fail.hpp"
#include "base/sync.hpp"

namespace slip::store {
namespace {

// Returns the address in a destination for the first byte of a range. This address equals `offset` modulo the
// alignment, so that direct reads need no bounce buffer. If the range does not fit that way, it is the start of the
// destination.
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
    const std::size_t got = read_up_to(range.file->descriptor(), offset_, target_, bytes_, error);
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

struct ReadDone {
  std::uint64_t tag = 0;    // the tag that was passed to put()
  std::int32_t result = 0;  // bytes, or minus errno
};

#ifdef SLIP_HAS_LIBURING

// Asynchronous reads with io_uring. One thread at a time.
class ReadRing : base::NoCopy {
 public:
  // Null: the kernel is too old, or a seccomp filter forbids io_uring.
  static std::unique_ptr<ReadRing> open(unsigned entries) {
    io_uring ring{};
    if (::io_uring_queue_init(entries, &ring, 0) != 0) return nullptr;
    std::unique_ptr<ReadRing> result(new ReadRing(ring));
    // IORING_OP_READ (Linux 5.6) has no feature bit, but IORING_FEAT_RW_CUR_POS came with the same release.
    if ((ring.features & IORING_FEAT_RW_CUR_POS) == 0) return nullptr;
    return result;
  }
  ~ReadRing() { ::io_uring_queue_exit(&ring_); }

  // Adds a read; at most `entries` may be in flight. The next wait() or poll() submits it to the kernel.
  void put(int descriptor, std::uint64_t offset, void* into, std::size_t bytes, std::uint64_t tag) {
    io_uring_sqe* const request = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_read(request, descriptor, into, static_cast<unsigned>(bytes), offset);
    ::io_uring_sqe_set_data64(request, tag);
  }

  // Waits until any read is done.
  ReadDone wait(Here here) {
    std::optional<ReadDone> done;
    while (::io_uring_sq_ready(&ring_) > 0 || !(done = take())) enter(1, here);
    return *done;
  }

  // Does not wait. Nothing: no read is done.
  std::optional<ReadDone> poll(Here here) {
    while (::io_uring_sq_ready(&ring_) > 0) enter(0, here);
    return take();
  }

 private:
  explicit ReadRing(const io_uring& ring) : ring_(ring) {}

  std::optional<ReadDone> take() {
    io_uring_cqe* result = nullptr;
    if (::io_uring_peek_cqe(&ring_, &result) != 0) return std::nullopt;
    const ReadDone done{::io_uring_cqe_get_data64(result), result->res};
    ::io_uring_cqe_seen(&ring_, result);
    return done;
  }

  // Submits the added reads, and waits until there are `wanted` results.
  void enter(unsigned wanted, Here here) {
    const int sent = ::io_uring_submit_and_wait(&ring_, wanted);
    if (sent < 0 && sent != -EINTR && sent != -EAGAIN && sent != -EBUSY)
      base::fail(ErrorCode::kIo, here, "io_uring_enter failed: {}", std::strerror(-sent));
  }

  io_uring ring_;
};

#else

// Built without liburing: open() returns null, so nothing else is called.
class ReadRing {
 public:
  static std::unique_ptr<ReadRing> open(unsigned) { return nullptr; }
  void put(int, std::uint64_t, void*, std::size_t, std::uint64_t) {}
  ReadDone wait(Here) { return {}; }
  std::optional<ReadDone> poll(Here) { return {}; }
};

#endif

std::unique_ptr<DiskQueue> DiskQueue::open(BlockIo& io) {
  std::unique_ptr<ReadRing> ring = ReadRing::open(io.options().in_flight);
  return ring ? std::unique_ptr<DiskQueue>(new DiskQueue(io, std::move(ring))) : nullptr;
}

// The queue has an entry for the range that the caller reads, and one for each slot. So all slots can be used even if
// each range has one block only.
DiskQueue::DiskQueue(BlockIo& io, std::unique_ptr<ReadRing> ring)
    : io_(io), ring_(std::move(ring)), slots_(io.options().in_flight), entries_(io.options().in_flight + 1) {
  free_slots_.reserve(slots_.size());
  due_slots_.reserve(slots_.size());
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
}

DiskQueue::~DiskQueue() {
  try {
    end_all({});
  } catch (const Error&) {  // io_uring itself failed, so waiting is not possible
  }
}

bool DiskQueue::expects(const ReadRange& range) const {
  if (count_ == 0) return false;
  const ReadRange& first = at(0).range;
  return first.file == range.file && first.offset == range.offset && first.bytes == range.bytes &&
         first.target == range.target;
}

void DiskQueue::append(const ReadRange& range) {
  Entry& entry = at(count_++);
  entry = {};
  entry.range = range;
  entry.cold = io_.none_cached(range);
  entry.blocks = range.blocks(io_.options().block_bytes);
}

// Waits for the reads in flight: otherwise the kernel could write into memory that the owner of the destination already
// uses for something else.
void DiskQueue::end_all(Here here) {
  for (const std::size_t slot : due_slots_) release(slot);
  due_slots_.clear();
  while (free_slots_.size() < slots_.size()) release(ring_->wait(here).tag);
  first_ = count_ = 0;
}

void DiskQueue::submit(std::size_t slot) {
  const ReadBlock& block = slots_[slot].block;
  ring_->put(slots_[slot].entry->range.descriptor, block.next_offset(), block.next_into(), block.next_bytes(), slot);
}

void DiskQueue::complete(std::size_t slot, std::int64_t result) {
  auto& [block, entry] = slots_[slot];
  ReadFault fault;
  switch (block.advance(entry->range, result, fault)) {
    case ReadBlock::Step::kAgain: return due_slots_.push_back(slot);
    case ReadBlock::Step::kFailed:
      if (!entry->fault) entry->fault = fault;
      break;
    case ReadBlock::Step::kDone: io_.count(entry->range, block); break;
  }
  release(slot);
}

// Cached blocks are copied while the disk reads the others.
void DiskQueue::begin_blocks_of(Entry& entry) {
  while (!entry.all_begun() && !free_slots_.empty()) {
    ReadBlock block(entry.range, entry.begun++, io_.options().block_bytes);
    if (!entry.cold && io_.take_cached(entry.range, block)) continue;
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    block.prepare_disk_read(entry.range, io_.bounce(slot));
    slots_[slot] = {block, &entry};
    ++entry.in_flight;
    submit(slot);
  }
}

void DiskQueue::begin_blocks(const Next& next) {
  while (!due_slots_.empty()) {  // continue reads that were short or interrupted
    const std::size_t slot = due_slots_.back();
    due_slots_.pop_back();
    if (slots_[slot].entry->fault) release(slot);
    else submit(slot);
  }
  for (std::size_t i = 0; i < count_ && !free_slots_.empty(); ++i) begin_blocks_of(at(i));
  while (next && !free_slots_.empty() && count_ < entries_.size()) {
    const std::optional<ReadRange> range = next();
    if (!range) return;
    append(*range);
    begin_blocks_of(at(count_ - 1));
  }
}

std::optional<ReadFault> DiskQueue::read(const ReadRange& range, const Next& next, Here here) {
  if (count_ == 0) append(range);
  const Entry& wanted = at(0);
  // Some virtual disks report completions only when their queue is empty, so many completions arrive together. Before
  // this function returns, it replaces all these reads by new ones; otherwise the disk would be idle until the next
  // call. After the range is complete, it takes at most slots_.size() more completions, so it always returns.
  for (std::size_t replacements_left = slots_.size();;) {
    begin_blocks(next);
    const bool ends = wanted.over();
    const std::optional<ReadDone> done = ends ? ring_->poll(here) : ring_->wait(here);
    if (!done) break;
    complete(done->tag, done->result);
    if (ends && --replacements_left == 0) break;
  }
  const std::optional<ReadFault> fault = wanted.fault;
  first_ = (first_ + 1) % entries_.size();
  --count_;
  return fault;
}

}  // namespace slip::store
