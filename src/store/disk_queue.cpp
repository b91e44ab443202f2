#include "store/disk_queue.hpp"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/fail.hpp"
#include "base/sync.hpp"

namespace slip::store {
namespace {

// Needed: one mapping for both queues (Linux 5.4) and IORING_OP_READ (Linux 5.6). The latter has no feature bit;
// IORING_FEAT_RW_CUR_POS came with the same release.
constexpr std::uint32_t kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;

void* map_ring(int ring, std::size_t bytes, std::uint64_t what) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, static_cast<off_t>(what));
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

// Asynchronous reads with io_uring. It uses raw system calls, so liburing is not needed. One thread at a time.
class ReadRing : base::NoCopy {
 public:
  // Null: the kernel is too old, or a seccomp filter forbids io_uring.
  static std::unique_ptr<ReadRing> open(unsigned entries) {
    io_uring_params params{};
    const long ring = ::syscall(SYS_io_uring_setup, entries, &params);
    if (ring < 0) return nullptr;
    std::unique_ptr<ReadRing> result(new ReadRing);
    result->ring_ = static_cast<int>(ring);
    if ((params.features & kNeeded) != kNeeded || !result->map(params)) return nullptr;
    return result;
  }

  ~ReadRing() {
    if (ring_ >= 0) ::close(ring_);
  }

  // Adds a read; at most `entries` may be in flight. The next wait() or poll() submits it to the kernel.
  void put(int descriptor, std::uint64_t offset, void* into, std::size_t bytes, std::uint64_t tag) {
    const std::uint32_t tail = *submit_tail_;  // written by this thread only
    const std::uint32_t place = tail & submit_mask_;
    io_uring_sqe& request = requests_[place];
    std::memset(&request, 0, sizeof request);
    request.opcode = IORING_OP_READ;
    request.fd = descriptor;
    request.off = offset;
    request.addr = reinterpret_cast<std::uintptr_t>(into);
    request.len = static_cast<std::uint32_t>(bytes);
    request.user_data = tag;
    submit_order_[place] = place;
    // release: the kernel sees the request before the tail that includes it.
    std::atomic_ref(*submit_tail_).store(tail + 1, std::memory_order_release);
    ++unsent_;
  }

  struct Done {
    std::uint64_t tag = 0;
    std::int32_t result = 0;  // bytes, or minus errno
  };

  // Waits until any read is done.
  Done wait(Here here) {
    Done done;
    while (unsent_ > 0 || !take(done)) enter(1, here);
    return done;
  }

  // Does not wait. Nothing: no read is done.
  std::optional<Done> poll(Here here) {
    while (unsent_ > 0) enter(0, here);
    Done done;
    return take(done) ? std::optional(done) : std::nullopt;
  }

 private:
  ReadRing() = default;

  bool map(const io_uring_params& params) {
    const std::size_t submit_bytes = params.sq_off.array + params.sq_entries * sizeof(std::uint32_t);
    const std::size_t done_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    queues_.bytes = std::max(submit_bytes, done_bytes);
    queues_.memory = map_ring(ring_, queues_.bytes, IORING_OFF_SQ_RING);
    entries_.bytes = params.sq_entries * sizeof(io_uring_sqe);
    entries_.memory = map_ring(ring_, entries_.bytes, IORING_OFF_SQES);
    if (!queues_.memory || !entries_.memory) return false;
    auto* base = static_cast<char*>(queues_.memory);
    const auto field = [base](std::uint32_t offset) { return reinterpret_cast<std::uint32_t*>(base + offset); };
    submit_tail_ = field(params.sq_off.tail);
    submit_order_ = field(params.sq_off.array);
    submit_mask_ = *field(params.sq_off.ring_mask);
    done_head_ = field(params.cq_off.head);
    done_tail_ = field(params.cq_off.tail);
    done_mask_ = *field(params.cq_off.ring_mask);
    requests_ = static_cast<io_uring_sqe*>(entries_.memory);
    results_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
    return true;
  }

  bool take(Done& done) {
    const std::uint32_t head = *done_head_;  // written by this thread only
    // acquire: sees the results that the kernel wrote before it advanced the tail.
    if (head == std::atomic_ref(*done_tail_).load(std::memory_order_acquire)) return false;
    const io_uring_cqe& result = results_[head & done_mask_];
    done = {result.user_data, result.res};
    // release: the kernel may reuse the entry only after this thread has read it.
    std::atomic_ref(*done_head_).store(head + 1, std::memory_order_release);
    return true;
  }

  // Submits the added reads, and waits until there are `wanted` results.
  void enter(unsigned wanted, Here here) {
    const unsigned flags = wanted > 0 ? IORING_ENTER_GETEVENTS : 0;
    const long sent = ::syscall(SYS_io_uring_enter, ring_, unsent_, wanted, flags, nullptr, 0);
    if (sent >= 0) unsent_ -= static_cast<unsigned>(sent);
    else if (errno != EINTR && errno != EAGAIN && errno != EBUSY)
      base::fail(Code::kIo, here, "io_uring_enter failed: {}", std::strerror(errno));
  }

  struct Mapping {
    ~Mapping() {
      if (memory) ::munmap(memory, bytes);
    }
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  int ring_ = -1;
  Mapping queues_, entries_;
  std::uint32_t *submit_tail_ = nullptr, *submit_order_ = nullptr;
  std::uint32_t *done_head_ = nullptr, *done_tail_ = nullptr;
  std::uint32_t submit_mask_ = 0, done_mask_ = 0;
  io_uring_sqe* requests_ = nullptr;
  io_uring_cqe* results_ = nullptr;
  unsigned unsent_ = 0;
};

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

// Waits for the reads in flight. Otherwise the kernel would write into memory that its owner already uses for something
// else.
void DiskQueue::end_all(Here here) {
  for (const std::size_t slot : due_slots_) release(slot);
  due_slots_.clear();
  while (free_slots_.size() < slots_.size()) release(ring_->wait(here).tag);
  first_ = count_ = 0;
}

void DiskQueue::release(std::size_t slot) {
  --slots_[slot].entry->in_flight;
  free_slots_.push_back(slot);
}

void DiskQueue::submit(std::size_t slot) {
  const ReadBlock& block = slots_[slot].block;
  const ReadRange& range = slots_[slot].entry->range;
  const std::int64_t max = io_.allowed(range, block);
  if (max > 0)
    return ring_->put(range.descriptor, block.next_offset(), block.next_into(), static_cast<std::size_t>(max), slot);
  complete(slot, max);  // a test injects the end of the file, or an error
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
    block.aim(entry.range, io_.bounce(slot));
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
  for (std::size_t place = 0; place < count_ && !free_slots_.empty(); ++place) begin_blocks_of(at(place));
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
  // Some disks, for example virtual ones, report all reads together only when they have no more work. So finished reads
  // are replaced by new ones before the caller continues. At most slots_.size() reads are replaced after the range is
  // complete, so that this function always returns.
  for (std::size_t more = slots_.size();;) {
    begin_blocks(next);
    if (!due_slots_.empty() && !wanted.over()) continue;
    const bool ends = wanted.over();
    const std::optional<ReadRing::Done> done = ends ? ring_->poll(here) : ring_->wait(here);
    if (!done) break;
    complete(done->tag, done->result);
    if (ends && --more == 0) break;
  }
  const std::optional<ReadFault> fault = wanted.fault;
  first_ = (first_ + 1) % entries_.size();
  --count_;
  return fault;
}

}  // namespace slip::store
