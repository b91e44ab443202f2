#include "store/disk_queue.hpp"

namespace slip {

std::unique_ptr<DiskQueue> DiskQueue::open(BlockIo& io) {
  std::unique_ptr<ReadRing> ring = ReadRing::open(io.options().in_flight);
  return ring ? std::unique_ptr<DiskQueue>(new DiskQueue(io, std::move(ring))) : nullptr;
}

// in_flight + 1 entries suffice: more would not put more blocks in flight.
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
  const std::int64_t most = io_.allowed(range, block);
  if (most > 0)
    return ring_->put(range.descriptor, block.next_offset(), block.next_into(), static_cast<std::size_t>(most), slot);
  complete(slot, most);
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

}  // namespace slip
