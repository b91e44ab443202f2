// Device: a processor with its own memory and streams. "cpu" runs ops on host threads, "sim:NAME" simulates a GPU in
// virtual time, "cuda:N" is a GPU. A Device is a handle: copies refer to the same device. When the last copy is
// destroyed, the device finishes its work and closes. Threads may use a device concurrently. "(rule N)" in comments
// refers to docs/semantics.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "slip/buffer.hpp"
#include "slip/stream.hpp"

namespace slip {

// How the cpu device schedules ops that are ready.
enum class CpuPolicy : unsigned char {
  kConcurrent,  // on several threads
  kSingle,      // one op at a time, in issue order
  kRandom,      // one op at a time, in random order (DeviceOptions::seed): a missing wait becomes a wrong result
};
using Policy [[deprecated("use CpuPolicy")]] = CpuPolicy;

// What an asynchronous copy of pageable memory does (rule 38). kAuto: small uploads are staged, others block the host.
enum class PageableCopy : unsigned char { kAuto, kStage, kBlock };

enum class DefaultStream : unsigned char { kLegacy, kPerThread };

// When the pool may reuse memory freed in one stream for another (rule 87), and how many bytes it keeps (rule 88).
struct PoolOptions {
  bool follow_event_dependencies = true;
  bool opportunistic = true;
  bool internal_dependencies = true;
  std::size_t release_threshold = 0;
};

struct DeviceOptions {
  CpuPolicy policy = CpuPolicy::kConcurrent;  // cpu
  std::uint64_t seed = 1;                     // cpu, kRandom
  int compute_workers = 0;                    // cpu: worker threads; 0: one per core, at least 2
  std::size_t queue_depth = 0;                // capacity of a stream's queue, in ops of minimum size; 0: 4096
  int max_connections = 0;                    // hardware queues; 0: unlimited on cpu, 32 on cuda, by description on sim
  std::size_t memory_limit = 0;               // bytes of device memory; 0: all of it
  bool strict = false;                        // cpu: an op that accesses undeclared device memory is an error
  bool run_functions = true;                  // sim: run the kernels' cpu functions, too; false: times only
  bool launch_blocking = false;               // every launch waits for its work, like CUDA_LAUNCH_BLOCKING
  bool legacy_implicit_sync = false;          // allocation, fill and copies within the device synchronise implicitly
  PageableCopy pageable = PageableCopy::kAuto;
  DefaultStream default_stream = DefaultStream::kLegacy;
  PoolOptions pool = {};
  Name name = {};  // replaces the device's name in errors and reports; open_all() appends a number
};

struct DeviceInfo {
  std::string name;  // as opened: "cpu", "sim:h200"; for a description passed as text "sim:" and its name
  std::string description;
  std::size_t memory_bytes = 0;
  int compute_workers = 0;  // kernels that can run concurrently; 0: not a fixed number
  int copy_engines = 2;
  int queues = 0;  // hardware queues; 0: unlimited
  int min_priority = 0;
  int max_priority = -2;  // lower numbers are higher priorities, as in CUDA: max_priority <= min_priority
  bool virtual_time = false;
  std::uint64_t world = 0;  // devices with the same number share one virtual clock; 0: real time
  std::string label = {};   // the device's name in errors and reports: DeviceOptions::name, or else `name`
};

// Device memory in bytes.
struct MemoryInfo {
  std::size_t used = 0;      // allocated by the program
  std::size_t reserved = 0;  // used, plus free memory that the pool keeps
  std::size_t peak = 0;      // maximum of `reserved`
  std::size_t total = 0;
};

// device.stream({.name = "loads", .flags = slip::StreamFlags::kNonBlocking})
struct StreamOptions {
  Name name = {};  // shown in reports, errors and on the timeline; a comparison matches streams by their names
  StreamFlags flags = StreamFlags::kBlocking;
  int priority = 0;  // clamped to the device's range (DeviceInfo)
};

class Device {
 public:
  // Opens a device: "cpu", "cpu:1", "sim:h200", "sim:path/to/description.json", "sim:{...}" with the description
  // itself, "cuda:0". Each call opens a new device.
  static Device open(std::string_view name, const DeviceOptions& options = {}, Here here = Here::at());
  // Several devices of one kind that can access each other. On sim they share links and one virtual clock.
  static std::vector<Device> open_all(std::string_view name, int count, const DeviceOptions& options = {},
                                      Here here = Here::at());

  Stream stream(StreamFlags flags = StreamFlags::kBlocking, int priority = 0, Here here = Here::at()) const;
  Stream stream(Name name, StreamFlags flags = StreamFlags::kBlocking, int priority = 0, Here here = Here::at()) const;
  Stream stream(const StreamOptions& options, Here here = Here::at()) const;
  Stream adopt(CUstream_st* native, Here here = Here::at()) const;  // see Stream::adopt
  Stream adopt(CUstream_st* native, Name name, Here here = Here::at()) const;
  Stream adopt(CUstream_st* native, Name name, NativeLifetime lifetime, Here here = Here::at()) const;
  StreamRef legacy_stream() const;
  StreamRef per_thread_stream() const;
  StreamRef default_stream() const;  // the legacy or the per-thread one, by DeviceOptions::default_stream

  Buffer alloc(std::size_t bytes, MemoryKind kind = MemoryKind::kDevice, Name name = {}, Here here = Here::at()) const;
  // A Buffer over memory that the program owns: it never frees it.
  Buffer wrap(void* data, std::size_t bytes, MemoryKind kind = MemoryKind::kPageable, Name name = {},
              Here here = Here::at()) const;

  // Synchronous copy and fill in the default stream (rules 32-36, 42, 43). sync() waits for all streams.
  void copy(Range to, Range from, Here here = Here::at()) const;
  void fill(Range to, unsigned char value, Here here = Here::at()) const;
  void sync(Here here = Here::at()) const;
  bool sync_for(std::chrono::nanoseconds limit, Here here = Here::at()) const;  // false: not done after `limit`

  bool can_access_peer(const Device& peer) const;
  void enable_peer_access(const Device& peer, Here here = Here::at()) const;
  void disable_peer_access(const Device& peer, Here here = Here::at()) const;

  MemoryInfo memory() const;
  void reset_peak_memory() const;
  const DeviceInfo& info() const;
  const DeviceOptions& options() const;
  std::uint32_t id() const;
  Picos now() const;  // the device's clock: virtual time on sim

  friend bool operator==(const Device& a, const Device& b) { return a.core_ == b.core_; }

 private:
  friend class Event;
  friend struct runtime::DeviceCore;  // makes handles of itself
  explicit Device(std::shared_ptr<runtime::DeviceCore> core) : core_(std::move(core)) {}
  std::shared_ptr<runtime::DeviceCore> core_;
};

}  // namespace slip
