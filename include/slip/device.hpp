// Device: a processor with its own memory and streams. "cpu" runs work on host threads, "sim:NAME" in virtual time,
// "cuda:N" on a GPU. A Device is a handle; copies refer to the same device, which closes, after finishing its work,
// with the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "slip/buffer.hpp"
#include "slip/stream.hpp"

namespace slip {

// How the cpu device chooses among work that is ready.
enum class Policy : unsigned char {
  kConcurrent,  // several threads
  kSingle,      // one op at a time, in the order issued
  kRandom,      // one op at a time, chosen at random from DeviceOptions::seed: a missing edge becomes a wrong result
};

// What an asynchronous copy of pageable memory does (rule 38). kAuto: small uploads are staged, the rest hold the host.
enum class PageableCopy : unsigned char { kAuto, kStage, kBlock };

enum class DefaultStream : unsigned char { kLegacy, kPerThread };

// When the pool may hand memory freed in one stream to another (rule 87), and how much it keeps (rule 88).
struct PoolOptions {
  bool follow_event_dependencies = true;
  bool opportunistic = true;
  bool internal_dependencies = true;
  std::size_t release_threshold = 0;
};

struct DeviceOptions {
  Policy policy = Policy::kConcurrent;  // cpu
  std::uint64_t seed = 1;               // cpu, kRandom
  int compute_workers = 0;              // cpu; 0: as many as cores, at least 2
  std::size_t queue_depth = 0;          // bound of a stream's queue, in ops of the smallest size; 0: 4096
  int max_connections = 0;              // hardware queues; 0: unlimited on cpu, as described on sim
  std::size_t memory_limit = 0;         // bytes of device memory; 0: what the device has
  bool strict = false;                  // cpu: an op that touches device memory it did not declare is an error
  bool run_functions = true;            // sim: also run the kernels' functions
  bool launch_blocking = false;         // every launch waits for its work
  bool legacy_implicit_sync = false;    // the old list of implicit synchronisers (allocation, fill, copy on the device)
  PageableCopy pageable = PageableCopy::kAuto;
  DefaultStream default_stream = DefaultStream::kLegacy;
  PoolOptions pool = {};
};

struct DeviceInfo {
  std::string name;  // as opened, "cpu" or "sim:h200"; with the name of a description that was given as text
  std::string description;
  std::size_t memory_bytes = 0;
  int compute_workers = 0;  // kernels that can run at once, where that is a number
  int copy_engines = 2;
  int queues = 0;  // hardware queues; 0: unlimited
  int min_priority = 0;
  int greatest_priority = -2;  // lower number, higher priority
  bool virtual_time = false;
  std::uint64_t world = 0;  // devices of one number share one virtual time; 0: real time
};

// Device memory as the device counts it.
struct MemoryInfo {
  std::size_t used = 0;      // allocated by the program
  std::size_t reserved = 0;  // taken from the system, with what the pool keeps
  std::size_t peak = 0;      // highest `reserved`
  std::size_t total = 0;
};

class Device {
 public:
  // Opens a device: "cpu", "cpu:1", "sim:h200", "sim:path/to/description.json", the
  // description itself ("sim:{...}"), "cuda:0". Each call opens a new one.
  static Device open(std::string_view name, const DeviceOptions& options = {}, Here here = Here::at());
  // Several devices of one kind that can reach each other; on sim they share links and one virtual time.
  static std::vector<Device> open_all(std::string_view name, int count, const DeviceOptions& options = {},
                                      Here here = Here::at());

  Stream stream(StreamFlags flags = StreamFlags::kBlocking, int priority = 0, Here here = Here::at()) const;
  // With a name for traces; a predicted run is laid under a measured one by the names of their streams.
  Stream stream(Name name, StreamFlags flags = StreamFlags::kBlocking, int priority = 0, Here here = Here::at()) const;
  Stream adopt(CUstream_st* native, Here here = Here::at()) const;  // see Stream::adopt
  StreamRef legacy_stream() const;
  StreamRef per_thread_stream() const;
  StreamRef default_stream() const;  // one of the two, by DeviceOptions::default_stream

  Buffer alloc(std::size_t bytes, MemoryKind kind = MemoryKind::kDevice, Name name = {}, Here here = Here::at()) const;
  // Memory that the program owns, as a Buffer that does not free it.
  Buffer wrap(void* data, std::size_t bytes, MemoryKind kind = MemoryKind::kPageable, Name name = {},
              Here here = Here::at()) const;

  // Synchronous copy and fill, in the default stream (rules 32-36, 42, 43).
  void copy(Range to, Range from, Here here = Here::at()) const;
  void fill(Range to, unsigned char value, Here here = Here::at()) const;
  void sync(Here here = Here::at()) const;

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
  friend struct DeviceCore;  // makes handles of itself
  explicit Device(std::shared_ptr<DeviceCore> core) : core_(std::move(core)) {}
  std::shared_ptr<DeviceCore> core_;
};

}  // namespace slip
