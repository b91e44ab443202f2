// StreamPool: stream-ordered allocation for backends that have none of their own (rules 84-88).
//
// Memory freed in a stream may be handed out again in the same stream at once, since stream order protects it. Another
// stream gets it only when it is ordered after the free by events it waited for, when the free is already reached, or
// by a wait that the pool adds; each way can be switched off. Blocks keep their size: no splitting, a block serves
// requests of at least half its size.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/core.hpp"

namespace slip {

class StreamPool {
 public:
  explicit StreamPool(DeviceCore& core) : core_(core) {}
  ~StreamPool();

  // Gives the block memory for its bytes, usable by work issued to `stream` from now on. Throws kOutOfMemory with the
  // numbers.
  void alloc(StreamState& stream, Block& block, Here here);
  void free(StreamState& stream, const Block& block, Here here);
  // Gives back to the system what is over the release threshold and no longer in use (at a synchronisation, rule 88).
  void trim(std::size_t keep);
  // Tells the pool of a wait, so that it can follow event dependencies. Cheap while nothing is free.
  void note_wait(const StreamState& stream, Point point) {
    if (watching_.load(std::memory_order_relaxed)) [[unlikely]]
      keep_wait(stream, point);
  }

 private:
  struct FreeBlock {
    std::byte* data;
    std::size_t bytes;
    Point freed;  // reached when the memory is no longer in use
  };
  struct Wait {
    std::uint64_t at;
    Point point;
  };

  void keep_wait(const StreamState& stream, Point point);
  static std::size_t rounded(std::size_t bytes);
  bool reuse(StreamState& stream, std::size_t bytes, FreeBlock& found, Point& wait_for);
  bool ordered_after(const StreamState* stream, std::uint64_t position, Point point, int depth) const;
  bool release_reached(std::size_t keep);

  DeviceCore& core_;
  std::mutex mutex_;  // guards what follows
  std::vector<FreeBlock> free_;
  std::size_t free_bytes_ = 0;
  std::unordered_map<const StreamState*, std::deque<Wait>> waits_;
  std::atomic<bool> watching_{false};  // some memory is free: waits matter
};

}  // namespace slip
