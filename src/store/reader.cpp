#include "store/reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/team.hpp"
#include "store/crew.hpp"
#include "store/page_cache.hpp"
#include "store/read_ring.hpp"

namespace slip {
namespace {

using Cache = ReaderOptions::Cache;
using Disk = ReaderOptions::Disk;

constexpr std::uint64_t kFewBlocks = 2;                      // that one thread copies before others would be awake
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;  // some 20 us: what a loop may wait for it

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

ReaderOptions checked(ReaderOptions options, Here here) {
  constexpr std::size_t kMaxBlock = std::size_t{1} << 30;
  if (options.block_bytes == 0 || options.block_bytes > kMaxBlock || options.in_flight == 0 ||
      options.in_flight > 1024 || options.threads == 0 || options.threads > 256)
    throw Error(Code::kInvalidValue,
                fmt::format("a reader of {} blocks of {} bytes by {} threads: 1 to 1024 blocks, 1 to {} bytes and 1 to "
                            "256 threads can be",
                            options.in_flight, options.block_bytes, options.threads, kMaxBlock),
                here);
  options.block_bytes = (options.block_bytes + kMaxDirectAlignment - 1) / kMaxDirectAlignment * kMaxDirectAlignment;
  options.in_flight = std::max(options.in_flight, options.threads);  // each thread has a block of its own
  return options;
}

}  // namespace

class BlockReader::State {
 public:
  State(const ReaderOptions& asked, Here here);

  std::byte* read(const File& file, std::uint64_t offset, std::size_t bytes, Landing landing, Here here);
  Counts counts() const;
  bool has_ring() const { return ring_ != nullptr; }

 private:
  void read_by_ring(Here here);
  void read_by_crew();
  bool copy_between_loops();
  void work_off(unsigned member);
  bool take_cached(ReadBlock& block);
  void submit(std::size_t slot);
  void complete(std::size_t slot, std::int64_t result);
  std::int64_t allowed(const ReadBlock& block) const;
  std::int64_t read_once(const ReadBlock& block) const;
  void count(const ReadBlock& block);
  void fail(const ReadFault& found);
  bool failed() const { return failed_.load(std::memory_order_relaxed); }  // relaxed: only ends work early
  std::byte* bounce(std::size_t slot) const { return bounces_.get() + slot * options_.block_bytes; }
  [[noreturn]] void throw_fault(Here here) const;

  const ReaderOptions options_;
  std::mutex turn_;  // held for a whole read
  std::unique_ptr<std::byte, FreeMemory> bounces_;
  std::unique_ptr<ReadRing> ring_;
  std::vector<ReadBlock> slots_;
  std::vector<std::size_t> free_slots_, due_slots_;  // due: to be read on

  ReadRange range_;  // of the read that has its turn
  std::atomic<std::uint64_t> next_block_{0};
  std::atomic<bool> failed_{false};
  std::mutex fault_mutex_;
  ReadFault fault_;  // the first one, under fault_mutex_
  // Relaxed: sums that nobody orders by.
  std::atomic<std::uint64_t> cached_{0}, direct_{0}, buffered_{0}, bounced_{0};
  std::unique_ptr<Crew> crew_;  // last: its threads use all of the above
};

BlockReader::State::State(const ReaderOptions& asked, Here here) : options_(checked(asked, here)) {
  const std::size_t bytes = options_.in_flight * options_.block_bytes;
  bounces_.reset(static_cast<std::byte*>(std::aligned_alloc(kMaxDirectAlignment, bytes)));
  if (!bounces_) throw Error(Code::kOutOfMemory, fmt::format("no {} bytes to read blocks into", bytes), here);
  if (options_.disk == Disk::kBest || options_.disk == Disk::kRing) ring_ = ReadRing::open(options_.in_flight);
  if (options_.disk == Disk::kRing && !ring_)
    throw Error(Code::kUnsupported,
                "no io_uring: the kernel is older than 5.6 or a filter refuses it; Disk::kThreads needs none", here);
  slots_.resize(options_.in_flight);
  free_slots_.reserve(options_.in_flight);
  due_slots_.reserve(options_.in_flight);
  crew_ = std::make_unique<Crew>("slip-read", options_.threads, [this](unsigned member) { work_off(member); });
}

void BlockReader::State::fail(const ReadFault& found) {
  const std::lock_guard lock(fault_mutex_);
  if (!failed()) fault_ = found;
  failed_.store(true, std::memory_order_relaxed);  // relaxed: fault_ is read when all have stopped
}

void BlockReader::State::throw_fault(Here here) const {
  const std::string where = fmt::format("{} bytes at {} of '{}'", fault_.asked, fault_.offset, range_.file->path());
  if (fault_.error != 0)
    throw Error(Code::kIo, fmt::format("cannot read {}, got {}: {}", where, fault_.got, std::strerror(fault_.error)),
                here);
  throw Error(Code::kIo,
              fmt::format("{}: got {}, then the file ends: it was cut short (it had {})", where, fault_.got,
                          range_.file->size()),
              here);
}

std::int64_t BlockReader::State::allowed(const ReadBlock& block) const {
  const auto most = static_cast<std::int64_t>(block.next_bytes());
  if (!options_.interfere) return most;
  const std::int64_t allowed = options_.interfere(block.next_offset(), block.next_bytes());
  return allowed < 0 ? allowed : std::min(most, allowed - allowed % static_cast<std::int64_t>(range_.alignment));
}

bool BlockReader::State::take_cached(ReadBlock& block) {
  if (options_.cache == Cache::kNever) return false;
  const std::size_t got = read_cached(*range_.file, block.offset(), block.target(), block.bytes());
  cached_.fetch_add(got, std::memory_order_relaxed);
  block.have(got);
  return block.bytes() == 0;
}

void BlockReader::State::count(const ReadBlock& block) {
  const bool direct = range_.descriptor != range_.file->descriptor();
  (direct ? direct_ : buffered_).fetch_add(block.bytes(), std::memory_order_relaxed);
  if (block.bounces()) bounced_.fetch_add(block.bytes(), std::memory_order_relaxed);
  // What this read brought into the page cache leaves it again: it is in memory already, where it was wanted.
  if (!direct)
    ::posix_fadvise(range_.descriptor, static_cast<off_t>(block.offset()), static_cast<off_t>(block.bytes()),
                    POSIX_FADV_DONTNEED);
}

std::int64_t BlockReader::State::read_once(const ReadBlock& block) const {
  const std::int64_t most = allowed(block);
  if (most <= 0) return most;
  const ssize_t got = ::pread(range_.descriptor, block.next_into(), static_cast<std::size_t>(most),
                              static_cast<off_t>(block.next_offset()));
  return got < 0 ? -static_cast<std::int64_t>(errno) : got;
}

// What each of the crew does: block after block, until there are no more.
void BlockReader::State::work_off(unsigned member) {
  const std::uint64_t blocks = range_.blocks(options_.block_bytes);
  while (!failed()) {
    // relaxed: it only deals out numbers; the range was published by the crew's mutex.
    const std::uint64_t index = next_block_.fetch_add(1, std::memory_order_relaxed);
    if (index >= blocks) return;
    ReadBlock block(range_, index, options_.block_bytes);
    if (take_cached(block)) continue;
    block.aim(range_, bounce(member));
    ReadFault fault;
    ReadBlock::Step step = ReadBlock::Step::kAgain;
    while (step == ReadBlock::Step::kAgain) step = block.advance(range_, read_once(block), fault);
    if (step == ReadBlock::Step::kFailed) return fail(fault);
    count(block);
  }
}

void BlockReader::State::read_by_crew() {
  next_block_.store(0, std::memory_order_relaxed);  // relaxed: the crew's mutex publishes it
  if (range_.blocks(options_.block_bytes) <= kFewBlocks) work_off(0);
  else crew_->run();
}

// False: some of it has left the cache meanwhile.
bool BlockReader::State::copy_between_loops() {
  const std::size_t pieces = (range_.bytes + kPieceBytes - 1) / kPieceBytes;
  std::atomic<bool> whole{true};
  for_each_between(pieces, [&](std::size_t index) {
    const std::size_t at = index * kPieceBytes, bytes = std::min(kPieceBytes, range_.bytes - at);
    const std::size_t got = read_cached(*range_.file, range_.offset + at, range_.target + at, bytes);
    cached_.fetch_add(got, std::memory_order_relaxed);
    if (got < bytes) whole.store(false, std::memory_order_relaxed);  // relaxed: read when the loop has ended
  });
  return whole.load(std::memory_order_relaxed);
}

void BlockReader::State::submit(std::size_t slot) {
  const ReadBlock& block = slots_[slot];
  const std::int64_t most = allowed(block);
  if (most > 0)
    return ring_->put(range_.descriptor, block.next_offset(), block.next_into(), static_cast<std::size_t>(most), slot);
  complete(slot, most);
}

void BlockReader::State::complete(std::size_t slot, std::int64_t result) {
  ReadFault fault;
  switch (slots_[slot].advance(range_, result, fault)) {
    case ReadBlock::Step::kAgain: return due_slots_.push_back(slot);
    case ReadBlock::Step::kFailed: fail(fault); break;
    case ReadBlock::Step::kDone: count(slots_[slot]); break;
  }
  free_slots_.push_back(slot);
}

// The caller's thread copies what is cached while the disk works on what is not. It leaves only when nothing is in
// flight any more: the kernel would write into memory that the caller has back.
void BlockReader::State::read_by_ring(Here here) {
  const std::uint64_t blocks = range_.blocks(options_.block_bytes);
  free_slots_.clear();
  due_slots_.clear();
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) free_slots_.push_back(slot);
  std::uint64_t next = 0;
  for (;;) {
    while (!failed() && next < blocks && !free_slots_.empty()) {
      ReadBlock block(range_, next++, options_.block_bytes);
      if (take_cached(block)) continue;
      const std::size_t slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[slot] = block;
      slots_[slot].aim(range_, bounce(slot));
      submit(slot);
    }
    if (!due_slots_.empty()) {  // a read that gave less, or was interrupted
      const std::size_t slot = due_slots_.back();
      due_slots_.pop_back();
      if (failed()) free_slots_.push_back(slot);
      else submit(slot);
      continue;
    }
    if (free_slots_.size() == slots_.size()) {
      if (failed() || next == blocks) return;
      continue;
    }
    const ReadRing::Done done = ring_->wait(here);
    complete(done.tag, done.result);
  }
}

std::byte* BlockReader::State::read(const File& file, std::uint64_t offset, std::size_t bytes, Landing landing,
                                    Here here) {
  const std::lock_guard turn(turn_);
  const bool direct = options_.disk != Disk::kBuffered && file.direct_descriptor() >= 0;
  range_ = {.file = &file,
            .descriptor = direct ? file.direct_descriptor() : file.descriptor(),
            .alignment = direct ? file.direct_alignment() : 1,
            .offset = offset,
            .bytes = bytes,
            .target = place_in(landing, offset, bytes, file.direct_alignment()),
            .landing = landing};
  failed_.store(false, std::memory_order_relaxed);  // relaxed: nobody else is at work
  // A copy from the cache is a matter of threads; the disk, of blocks in flight.
  const bool copies = options_.cache == Cache::kFirst && all_cached(file, offset, bytes);
  if (!(copies && options_.between_loops && copy_between_loops())) {
    if (ring_ && direct && !copies) read_by_ring(here);
    else read_by_crew();
  }
  if (failed()) throw_fault(here);
  file.require_unchanged(here);
  return range_.target;
}

BlockReader::Counts BlockReader::State::counts() const {
  const auto value = [](const std::atomic<std::uint64_t>& sum) { return sum.load(std::memory_order_relaxed); };
  return {value(cached_), value(direct_), value(buffered_), value(bounced_)};
}

BlockReader::BlockReader(const ReaderOptions& options, Here here) : state_(std::make_unique<State>(options, here)) {}
BlockReader::~BlockReader() = default;

std::size_t BlockReader::lead(const File& file, std::uint64_t offset) { return offset % file.direct_alignment(); }

std::size_t BlockReader::room(const File& file, std::uint64_t offset, std::size_t bytes) {
  const std::size_t alignment = file.direct_alignment();
  return (lead(file, offset) + bytes + alignment - 1) / alignment * alignment;
}

std::byte* BlockReader::read(const File& file, std::uint64_t offset, std::size_t bytes, Landing landing, Here here) {
  if (offset > file.size() || bytes > file.size() - offset)
    throw Error(Code::kInvalidValue,
                fmt::format("{} bytes at {} of '{}', which has {}", bytes, offset, file.path(), file.size()), here);
  if (bytes > landing.capacity)
    throw Error(
        Code::kInvalidValue,
        fmt::format("{} bytes at {} of '{}' into {} bytes of memory", bytes, offset, file.path(), landing.capacity),
        here);
  return state_->read(file, offset, bytes, landing, here);
}

BlockReader::Counts BlockReader::counts() const { return state_->counts(); }
bool BlockReader::has_ring() const { return state_->has_ring(); }

}  // namespace slip
