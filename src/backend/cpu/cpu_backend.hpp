// CpuBackend: the cpu device, whose streams (Lanes) run on host threads. CpuBackend writes ops into the lanes, and an
// Executor runs them. All public functions may be called by any thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "backend/cpu/executor.hpp"
#include "base/clock.hpp"
#include "runtime/backend.hpp"

namespace slip::backend {

class CpuBackend final : public runtime::Backend {
 public:
  explicit CpuBackend(runtime::DeviceCore& core);
  ~CpuBackend() override;

  void* allocate(MemoryKind kind, std::size_t bytes) override;
  void deallocate(MemoryKind kind, void* data, std::size_t bytes) noexcept override;
  runtime::StreamState* open_stream(const runtime::StreamSpec& spec) override SLIP_NO_THREAD_SAFETY_ANALYSIS;
  void close_stream(runtime::StreamState& stream) noexcept override;
  std::uint64_t submit(runtime::StreamState& stream, const Op& op) override;
  bool reached(runtime::StreamState& stream, std::uint64_t position) override;
  bool wait(runtime::StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) override;
  Picos now() override { return base::now_ns() * 1000; }

 private:
  // SLIP_NO_THREAD_SAFETY_ANALYSIS marks functions that return with a submit_lock held on one path only, or that lock
  // many lanes. clang's analysis cannot follow that.
  Lane* find_drained() SLIP_REQUIRES(mutex_) SLIP_NO_THREAD_SAFETY_ANALYSIS;
  std::vector<Lane*> covered_by(runtime::StreamState* stream);
  std::uint64_t submit_legacy(Lane& lane, const Op& op);
  // Adds the lanes that were idle and now have work to `activated`. The caller wakes the executor for them.
  std::optional<std::uint64_t> push_legacy(Lane& lane, const Op& op, std::vector<Lane*>& activated)
      SLIP_REQUIRES(lane.submit_lock) SLIP_NO_THREAD_SAFETY_ANALYSIS;
  std::uint64_t push(Lane& lane, const Op& op) SLIP_REQUIRES(lane.submit_lock);
  std::uint64_t write(Lane& lane, const Op& op) SLIP_REQUIRES(lane.submit_lock);
  std::uint64_t write_wait(Lane& lane, const Op& op, StreamPoint point) SLIP_REQUIRES(lane.submit_lock);
  void flush_pending(Lane& lane) SLIP_REQUIRES(lane.submit_lock);
  void settle_pending(Lane& lane) SLIP_EXCLUDES(lane.submit_lock);
  void push_wait(Lane& lane, Lane& target, std::uint64_t position) SLIP_REQUIRES(lane.submit_lock);
  // Whether the legacy stream has work that the lane does not wait for yet. relaxed: the result is exact if the caller
  // holds the lane's submit_lock. push_legacy() holds it, too, while it publishes the legacy op and stores legacy_end_.
  bool behind_legacy(const Lane& lane) const {
    return lane.joins_legacy &&
           legacy_end_.load(std::memory_order_relaxed) > lane.legacy_seen.load(std::memory_order_relaxed);
  }
  bool may_begin(const Lane& lane) const SLIP_REQUIRES(lane.submit_lock);

  runtime::DeviceCore& core_;
  // Whether the next op of a lane carries the waits before it. False with hardware queues, in which each wait has an
  // entry of its own. Also false under Serial, which schedules each wait and each op separately.
  const bool merge_waits_;
  const std::uint64_t depth_;  // capacity of each lane: cells, a power of two
  std::vector<std::unique_ptr<HardwareQueue>> queues_;
  std::atomic<std::uint64_t> issued_{0};      // number of the last issued op, for the order of CpuPolicy::kSingle
  Lane* legacy_ = nullptr;                    // constant after the device is opened
  std::uint64_t legacy_begin_ = 0;            // position of `legacy_` when the device was opened
  std::atomic<std::uint64_t> legacy_end_{0};  // position of the last legacy op that blocking streams wait for
  base::Mutex mutex_;
  std::vector<Lane*> lanes_ SLIP_GUARDED_BY(mutex_);  // also closed ones
  std::size_t opened_ SLIP_GUARDED_BY(mutex_) = 0;    // streams opened so far: assigns the hardware queues in turn
  std::unique_ptr<Executor> executor_;                // last member: its threads end first
};

runtime::Backends open_cpu(std::string_view rest, runtime::Cores cores);

}  // namespace slip::backend
