// The state behind Device, StreamRef and Buffer. Private to the runtime and the backends.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "runtime/backend.hpp"
#include "slip/device.hpp"

namespace slip {

class Capture;
class Observer;
class StreamPool;

// Why a stream or a device no longer works. The first failure sticks.
struct Failure {
  Code code = Code::kOk;
  std::string text;
  std::uint64_t position = 0;  // in its stream: points before it are still good
  Here here;
  std::uint64_t stream = 0;  // id of the stream; 0: closed by then, or the device itself
};

// A failure that sticks: set once, then read by anyone.
class Sticky {
 public:
  bool set() const { return set_.load(std::memory_order_relaxed); }  // relaxed: value() takes the lock
  bool put(Failure failure);                                         // false: there was one already
  Failure value() const;
  void clear();

 private:
  std::atomic<bool> set_{false};
  mutable SpinLock lock_;
  Failure failure_;
};

// Streams are never deleted, only used again under a new id, so that a dangling StreamRef or an old Event meets a valid
// object: the reference sees another id, the event a position long reached (positions go on from one life to the next).
struct StreamState {
  virtual ~StreamState() = default;
  // What each call looks at comes first, on one cache line.
  std::atomic<std::uint64_t> id{0};  // 0: closed
  std::uint64_t last_id = 0;         // the id it had when it was closed, for traces
  DeviceCore* core = nullptr;
  std::atomic<Capture*> capture{nullptr};
  StreamFlags flags = StreamFlags::kBlocking;
  bool legacy = false;
  int priority = 0;
  Sticky failure;
  SpinLock observed;             // orders submission and its record while an observer is attached
  Observer* audience = nullptr;  // see PrivateScope

  bool blocking() const { return flags == StreamFlags::kBlocking && !legacy; }
  virtual CUstream_st* native() { return nullptr; }
  virtual EventState* make_timed_event();  // what a timed record in this stream is given to fill in
  virtual bool compiles_plans() const { return false; }
};

// One allocation. Blocks are never deleted either, see StreamState.
struct Block {
  std::atomic<std::uint64_t> id{0};  // 0: freed
  DeviceCore* core = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t capacity = 0;  // stream-ordered: what the pool took for it, at least `bytes`
  MemoryKind kind = MemoryKind::kDevice;
  bool owned = true;                     // false: wrapped
  std::atomic<std::uint64_t> guests{0};  // other devices whose ops named it: a bit for each id modulo 64
  StreamState* origin = nullptr;         // stream-ordered: the stream it was allocated in
  std::uint64_t origin_id = 0;
  Observer* audience = nullptr;  // see PrivateScope
  Name name;
};

// Device memory, counted against a limit.
class MemoryLedger {
 public:
  void set_total(std::size_t bytes) { total_ = bytes; }
  bool reserve(std::size_t bytes);  // false: over the limit
  void release(std::size_t bytes);
  void use(std::ptrdiff_t bytes);
  void reset_peak();
  MemoryInfo info() const;

 private:
  mutable SpinLock lock_;
  std::size_t used_ = 0, reserved_ = 0, peak_ = 0, total_ = 0;
};

// Bytes of pageable sources copied aside until their upload has run (rule 38).
class Staging {
 public:
  explicit Staging(Backend& backend) : backend_(backend) {}
  ~Staging();
  std::byte* take(std::size_t bytes);                          // reclaims what is done
  void give(std::byte* data, std::size_t bytes, Point until);  // freed once `until` is reached

 private:
  struct Piece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Point until;
  };
  Backend& backend_;
  std::mutex mutex_;
  std::vector<Piece> pieces_;
};

struct DeviceCore : std::enable_shared_from_this<DeviceCore> {
  DeviceCore();
  ~DeviceCore();

  // Makes the backends of cores whose options are set, and fills in their info.
  using Opener = std::function<std::vector<std::unique_ptr<Backend>>(std::span<DeviceCore* const>)>;
  // Opens `count` devices under one name. Device::open_all calls it with a row of the backend table as `opener`.
  static std::vector<Device> open_all(const std::string& name, int count, const DeviceOptions& options,
                                      const Opener& opener, Here here);

  std::unique_ptr<Backend> backend;
  std::uint32_t id = 0;
  // The device's driver itself keeps the rules of pageable copies, copies between devices and stream-ordered memory.
  bool native = false;
  Sticky fault;  // the device is lost
  DeviceOptions options;
  DeviceInfo info;
  MemoryLedger memory;
  Sticky stream_failure;  // a stream failed: the device's own sync reports it until that stream is closed
  std::vector<std::uint32_t> reachable;  // native: physical devices whose memory it can reach, itself included
  std::uint32_t ordinal = 0;             // native: number of the physical device
  std::unique_ptr<StreamPool> pool;      // null where the backend allocates in stream order itself
  std::unique_ptr<Staging> staging;
  StreamState* legacy = nullptr;
  bool forked = false;                    // this process is a child of the one that opened it
  std::atomic<int> captures{0};           // streams of this device that are capturing
  std::atomic<int> blocking_captures{0};  // of them blocking ones

  std::mutex mutex;                  // guards what follows
  std::vector<std::uint32_t> peers;  // devices whose memory this one's kernels may touch

  std::mutex named_mutex;                       // guards what follows
  std::map<std::uint64_t, Name> named_streams;  // by id: open streams that the program named, for observers to come
};

// Opens and closes streams with their identity and records.
StreamState* open_stream(DeviceCore& core, const StreamSpec& spec);
void close_stream(StreamState& stream) noexcept;

// Waits for all work of the device before memory or the device itself goes, unless the process exits or was forked.
void drain(DeviceCore& core) noexcept;

// Poisons a stream: it runs nothing more, and its next call throws. The first failure sticks.
void fail_stream(StreamState& stream, Failure failure);

// The one way from a call to the backend: checks the stream and the device, captures or submits, tells observers.
std::uint64_t issue(StreamState& stream, const Op& op);
// The last step of it, without the checks: for a caller that made them for several ops at once.
std::uint64_t enqueue(StreamState& stream, const Op& op);
// Waits for a point or kEverything (null stream: the device), tells observers, throws what failed. `id` is the one that
// the stream had when the point was recorded, 0 its present one.
bool wait_for(DeviceCore& core, StreamState* stream, std::uint64_t position, std::int64_t deadline_ns, Here here,
              std::uint64_t id = 0);
// The same without blocking.
bool is_reached(DeviceCore& core, StreamState* stream, std::uint64_t position, Here here, std::uint64_t id = 0);

[[noreturn]] void raise(const Failure& failure, Here here);
namespace detail {
extern constinit thread_local int inside_op;  // depth of InsideOp on this thread
[[noreturn]] void raise_unusable(const DeviceCore& core, Here here);
}  // namespace detail

// Throws when the device is lost or the caller is inside an op.
inline void require_usable(const DeviceCore& core, Here here) {
  if (detail::inside_op != 0 || core.fault.set()) [[unlikely]]
    detail::raise_unusable(core, here);
}
// The same, and when the stream is poisoned or must not be used now.
void require_stream(const StreamState& stream, Here here);

// Ranges: that they are of live buffers and within them; where their bytes are.
void require_range(const Range& range, const char* what, Here here);
// What a kernel of `core` may touch: its own memory, pinned memory, and memory of peers it was given access to.
void require_kernel_range(DeviceCore& core, const Range& range, Name kernel, Here here);
// What wait_value and write_value may: a word that the device can reach.
void require_word(const Range& word, const char* what, Here here);
inline std::byte* address(const Range& range) { return range.block->data + range.offset; }

// Marks this thread as running an op: calls into the runtime are refused meanwhile.
class InsideOp {
 public:
  InsideOp() { ++detail::inside_op; }
  ~InsideOp() { --detail::inside_op; }
};

// An op of `core` names memory of another device, or pinned through it: who frees it must wait for `core`, too.
// relaxed: freeing it while another thread issues work on it is the caller's race.
inline void note_guest(Block& block, const DeviceCore& core) {
  block.guests.fetch_or(std::uint64_t{1} << core.id % 64, std::memory_order_relaxed);
}

Block* take_block();            // a Block with a fresh id
void drop_block(Block* block);  // its ranges become invalid

}  // namespace slip
