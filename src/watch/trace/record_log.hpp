// The memory of a trace: records packed one after another into chunks.
//
// Shards by thread, each with its own lock, so that threads do not meet; one shared counter gives every record its
// place in the order of the process. It is taken with the record in hand, so what happened before has the lower number,
// which is what a race check needs and time stamps do not promise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "slip/trace.hpp"

namespace slip {

class RecordLog {
 public:
  explicit RecordLog(std::size_t max_bytes);

  // Thread-safe. Without memory the record is dropped and counted; in a child of fork nothing is recorded.
  void add(const Record& record) noexcept;
  // Thread-safe, also while records are added: a record under way may be missing.
  TraceData collect() const;

 private:
  static constexpr std::size_t kShards = 64;
  static constexpr std::size_t kSeen = 128;
  static constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

  struct Chunk {
    std::unique_ptr<std::byte[]> data;
    std::size_t used = 0;  // of full chunks; the last one's is known by Shard::at
  };
  struct alignas(64) Shard {
    mutable SpinLock lock;
    std::vector<Chunk> chunks;
    std::byte* at = nullptr;
    std::byte* end = nullptr;
    std::array<std::uint64_t, kSeen> seen{};  // ids of buffers described already, by id modulo kSeen
  };

  std::byte* room(Shard& shard, std::size_t bytes) noexcept;
  void describe(Shard& shard, const Range& range) noexcept;

  const std::size_t max_bytes_;
  const unsigned forks_;  // when it was made
  std::atomic<std::size_t> taken_{0};
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::array<Shard, kShards> shards_;
};

}  // namespace slip
