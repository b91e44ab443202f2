// StreamPool: stream-ordered allocation for backends without their own (rules 84-88).
//
// Memory freed in a stream may be reused in the same stream at once, since stream order protects it. Another stream
// gets it in three cases: it waited for an event that is ordered after the free, the free is already reached, or the
// pool adds a wait. PoolOptions can switch off each case. Blocks are not split: a block serves requests of at least
// half its size.
#pragma once

#include <atomic>
#include <deque>
#include <unordered_map>
#include <vector>

#include "runtime/core.hpp"

namespace slip::runtime {

class StreamPool {
 public:
  explicit StreamPool(DeviceCore& core) : core_(core) {}
  ~StreamPool();

  // Gives the block memory that work issued to `stream` from now on may use. Throws kOutOfMemory with the numbers.
  void alloc(StreamState& stream, Block& block, Here here);
  void free(StreamState& stream, const Block& block, Here here);
  // Returns unused memory over `keep` bytes to the system (at a synchronisation, rule 88).
  void trim(std::size_t keep);
  // Records a wait, so that the pool can follow event dependencies. Cheap while the pool has no free memory.
  void note_wait(const StreamState& stream, StreamPoint point) {
    if (watching_.load(std::memory_order_relaxed)) [[unlikely]]
      keep_wait(stream, point);
  }

 private:
  struct FreeBlock {
    std::byte* data;
    std::size_t bytes;
    StreamPoint freed;  // once it is reached, the memory is unused
  };
  struct StreamWait {
    std::uint64_t at;   // position in the waiting stream, right after the wait
    StreamPoint point;  // the point that it waits for
  };

  void keep_wait(const StreamState& stream, StreamPoint point);
  bool reuse(StreamState& stream, std::size_t bytes, FreeBlock& found, StreamPoint& wait_for) SLIP_REQUIRES(mutex_);
  bool ordered_after(const StreamState* stream, std::uint64_t position, StreamPoint point, int depth) const
      SLIP_REQUIRES(mutex_);
  bool release_reached(std::size_t keep) SLIP_REQUIRES(mutex_);

  DeviceCore& core_;
  base::Mutex mutex_;
  std::vector<FreeBlock> free_ SLIP_GUARDED_BY(mutex_);
  std::size_t free_bytes_ SLIP_GUARDED_BY(mutex_) = 0;
  std::unordered_map<const StreamState*, std::deque<StreamWait>> waits_ SLIP_GUARDED_BY(mutex_);
  std::atomic<bool> watching_{false};  // some memory is free, so waits must be recorded
};

}  // namespace slip::runtime
