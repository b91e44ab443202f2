// RecordLog: the storage of a Trace. Records are packed one after another into chunks of bytes.
//
// Each thread adds to a shard with its own lock, so threads rarely contend. One shared counter gives every record its
// sequence number. A thread takes the number while it adds the record. So if one record happens before another, it has
// the lower number. The race checker needs that order, and time stamps do not give it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "slip/trace.hpp"

namespace slip::watch {

class RecordLog {
 public:
  explicit RecordLog(std::size_t max_bytes);

  // Thread-safe. If memory is full, the record is dropped and counted. A forked child records nothing.
  void add(const Record& record) noexcept;
  // Thread-safe, also while records are added. A record that is being added at that moment may be missing. Empty in a
  // forked child, whatever its parent recorded.
  TraceData collect() const;

 private:
  static constexpr std::size_t kShards = 64;
  static constexpr std::size_t kDescribed = 128;
  static constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

  struct Chunk {
    std::unique_ptr<std::byte[]> data;
    std::size_t used = 0;  // only of full chunks; the last chunk is used up to Shard::at
  };
  struct alignas(64) Shard {
    mutable base::SpinLock lock;
    std::vector<Chunk> chunks SLIP_GUARDED_BY(lock);
    std::byte* at SLIP_GUARDED_BY(lock) = nullptr;
    std::byte* end SLIP_GUARDED_BY(lock) = nullptr;
    // Ids of buffers already described, by id modulo kDescribed.
    std::array<std::uint64_t, kDescribed> described SLIP_GUARDED_BY(lock){};
  };

  bool is_inherited() const noexcept;  // this process was forked after the log was constructed
  std::byte* allocate(Shard& shard, std::size_t bytes) noexcept SLIP_REQUIRES(shard.lock);
  void describe(Shard& shard, const Range& range) noexcept SLIP_REQUIRES(shard.lock);

  const std::size_t max_bytes_;
  const unsigned forks_;               // number of forks of the process when this log was constructed
  std::atomic<std::size_t> taken_{0};  // bytes of all chunks
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::array<Shard, kShards> shards_;
};

}  // namespace slip::watch
