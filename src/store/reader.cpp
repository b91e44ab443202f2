#include "store/reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/fail.hpp"
#include "base/team.hpp"
#include "base/thread.hpp"

namespace slip::store {
namespace {

using Disk = ReaderOptions::Disk;

constexpr std::uint64_t kFewBlocks = 2;  // one thread copies these faster than the others wake up
// Size of the pieces of copy_by_team(). Copying one takes about 20 us. A parallel loop waits for at most one
// piece of each thread, so this is its maximum delay.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

ReaderOptions checked(ReaderOptions options, Here here) {
  constexpr std::size_t kMaxBlock = std::size_t{1} << 30;
  if (options.block_bytes == 0 || options.block_bytes > kMaxBlock || options.in_flight == 0 ||
      options.in_flight > 1024 || options.threads == 0 || options.threads > 256)
    base::fail(ErrorCode::kInvalidValue, here,
               "a reader with {} blocks of {} bytes and {} threads: 1 to 1024 blocks, 1 to {} bytes and 1 to "
               "256 threads are allowed",
               options.in_flight, options.block_bytes, options.threads, kMaxBlock);
  options.block_bytes = (options.block_bytes + kMaxDirectAlignment - 1) / kMaxDirectAlignment * kMaxDirectAlignment;
  options.in_flight = std::max(options.in_flight, options.threads);  // each thread has its own block
  return options;
}

bool fits(const ReadRequest& request) {
  return request.offset <= request.file->size() && request.bytes <= request.file->size() - request.offset &&
         request.bytes <= request.destination.capacity;
}

void require_fit(const ReadRequest& request, Here here) {
  if (fits(request)) return;
  const auto& [file, offset, bytes, destination] = request;
  if (bytes > destination.capacity)
    base::fail(ErrorCode::kInvalidValue, here, "cannot read {} bytes at {} of '{}' into {} bytes of memory", bytes,
               offset, file->path(), destination.capacity);
  base::fail(ErrorCode::kInvalidValue, here, "cannot read {} bytes at {} of '{}', which has {} bytes", bytes, offset,
             file->path(), file->size());
}

}  // namespace

// Threads that run one function together with the calling thread, and sleep between two runs.
class BlockReader::ThreadGroup {
 public:
  // `work` runs once on every member; the caller of run() is member 0. It must not throw.
  ThreadGroup(unsigned members, std::function<void(unsigned member)> work) : work_(std::move(work)) {
    threads_.reserve(members - 1);
    try {
      for (unsigned member = 1; member < members; ++member) {
        base::Thread thread;
        thread.start(fmt::format("slip-read-{}", member), [this, member] { serve(member); });
        threads_.push_back(thread);
      }
    } catch (...) {
      stop();  // end the threads that were started: they use this object
      throw;
    }
  }
  ~ThreadGroup() { stop(); }

  // Returns when `work` has returned on all members; one caller at a time.
  void run() {
    {
      const base::LockGuard lock(mutex_);
      ++round_;
      busy_ = threads_.size();
    }
    begin_.notify_all();
    work_(0);
    const base::LockGuard lock(mutex_);
    while (busy_ != 0) end_.wait(mutex_);
  }

 private:
  void serve(unsigned member) {
    for (std::uint64_t seen = 0;;) {
      {
        const base::LockGuard lock(mutex_);
        while (!stopping_ && round_ == seen) begin_.wait(mutex_);
        if (stopping_) return;
        seen = round_;
      }
      work_(member);
      const base::LockGuard lock(mutex_);
      if (--busy_ == 0) end_.notify_one();
    }
  }

  void stop() {
    {
      const base::LockGuard lock(mutex_);
      stopping_ = true;
    }
    begin_.notify_all();
    for (base::Thread& thread : threads_) thread.join();
  }

  const std::function<void(unsigned)> work_;
  std::vector<base::Thread> threads_;  // constant after construction
  base::Mutex mutex_;
  base::CondVar begin_, end_;
  std::uint64_t round_ SLIP_GUARDED_BY(mutex_) = 0;  // number of calls of run()
  std::size_t busy_ SLIP_GUARDED_BY(mutex_) = 0;     // members that have not finished this round
  bool stopping_ SLIP_GUARDED_BY(mutex_) = false;
};

BlockReader::BlockReader(const ReaderOptions& asked, Here here) : io_(checked(asked, here), here) {
  const Disk disk = io_.options().disk;
  if (disk == Disk::kBest || disk == Disk::kRing) queue_ = DiskQueue::open(io_);
  if (disk == Disk::kRing && !queue_)
    throw Error(ErrorCode::kUnsupported,
                "io_uring is not available: this was built without liburing, the kernel is older than Linux 5.6, or a "
                "seccomp filter forbids it; use Disk::kThreads",
                here);
  threads_ = std::make_unique<ThreadGroup>(io_.options().threads, [this](unsigned member) { read_blocks(member); });
}

void BlockReader::throw_fault(Here here) const {
  const base::LockGuard lock(fault_mutex_);
  const std::string where =
      fmt::format("cannot read {} bytes at {} of '{}'", fault_.asked, fault_.offset, range_.file->path());
  if (fault_.error != 0)
    base::fail(ErrorCode::kIo, here, "{}: got {}, then {}", where, fault_.got, std::strerror(fault_.error));
  base::fail(ErrorCode::kIo, here, "{}: got {}, then the file ends; it was cut short (it had {} bytes when opened)",
             where, fault_.got, range_.file->size());
}

std::int64_t BlockReader::read_once(const ReadBlock& block) const {
  const ssize_t got =
      ::pread(range_.descriptor, block.next_into(), block.next_bytes(), static_cast<off_t>(block.next_offset()));
  return got < 0 ? -static_cast<std::int64_t>(errno) : got;
}

// Runs on each thread: claims and reads blocks until none is left.
void BlockReader::read_blocks(unsigned member) {
  const std::uint64_t blocks = range_.blocks(io_.options().block_bytes);
  while (!failed()) {
    // relaxed: only uniqueness counts; the mutex of ThreadGroup publishes the range.
    const std::uint64_t index = next_block_.fetch_add(1, std::memory_order_relaxed);
    if (index >= blocks) return;
    ReadBlock block(range_, index, io_.options().block_bytes);
    if (io_.take_cached(range_, block)) continue;
    block.prepare_disk_read(range_, io_.bounce(member));
    ReadFault fault;
    ReadBlock::Step step = ReadBlock::Step::kAgain;
    while (step == ReadBlock::Step::kAgain) step = block.advance(range_, read_once(block), fault);
    if (step == ReadBlock::Step::kFailed) return fail(fault);
    io_.count(range_, block);
  }
}

void BlockReader::read_by_threads() {
  next_block_.store(0, std::memory_order_relaxed);  // relaxed: the mutex of ThreadGroup publishes it
  if (range_.blocks(io_.options().block_bytes) <= kFewBlocks) read_blocks(0);
  else threads_->run();
}

// False: a part of the range has left the page cache meanwhile.
bool BlockReader::copy_by_team() {
  const std::size_t pieces = (range_.bytes + kPieceBytes - 1) / kPieceBytes;
  std::atomic<bool> whole{true};
  base::for_each_background_piece(pieces, [&](std::size_t index) {
    const std::size_t at = index * kPieceBytes, bytes = std::min(kPieceBytes, range_.bytes - at);
    const std::size_t got = read_cached(*range_.file, range_.offset + at, range_.target + at, bytes);
    io_.took_cached(got);
    if (got < bytes) whole.store(false, std::memory_order_relaxed);  // relaxed: read after the loop
  });
  return whole.load(std::memory_order_relaxed);
}

// Reads ahead only requests that need the disk. Threads copy cached requests when the caller reads them.
void BlockReader::read_by_queue(const Next& next, Here here) {
  DiskQueue::Next next_range;
  if (next) {
    next_range = [&]() SLIP_REQUIRES(reading_) -> std::optional<ReadRange> {
      if (held_back_) return std::nullopt;
      const std::optional<ReadRequest> request = next();
      if (!request) return std::nullopt;
      const ReadRange range = io_.range_of(*request);
      held_back_ = !fits(*request) || !range.direct() || io_.all_cached(*request);
      return held_back_ ? std::nullopt : std::optional(range);
    };
  }
  if (const std::optional<ReadFault> fault = queue_->read(range_, next_range, here)) fail(*fault);
}

BlockReader::~BlockReader() = default;

std::size_t BlockReader::room(const File& file, std::uint64_t offset, std::size_t bytes) {
  const std::size_t alignment = file.direct_alignment();
  return (lead(file, offset) + bytes + alignment - 1) / alignment * alignment;
}

std::byte* BlockReader::read(const ReadRequest& request, const Next& next, Here here) {
  require_fit(request, here);
  const base::LockGuard lock(reading_);
  range_ = io_.range_of(request);
  failed_.store(false, std::memory_order_relaxed);  // relaxed: no other thread is reading now
  const bool begun = queue_ && queue_->expects(range_);
  if (!begun) held_back_ = false;
  if (!begun && queue_)
    queue_->end_all(here);  // even if this range is cached: the ranges that were read ahead are no longer the next ones
  // Threads copy from the page cache; the disk needs many blocks in flight.
  const bool copies = !begun && io_.all_cached(request);
  if (!(copies && io_.options().by_team && copy_by_team())) {
    if (queue_ && range_.direct() && !copies) read_by_queue(next, here);
    else read_by_threads();
  }
  if (failed()) throw_fault(here);
  range_.file->require_unchanged(here);
  return range_.target;
}

}  // namespace slip::store
