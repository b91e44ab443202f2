// The state behind Device, StreamRef and Buffer, and the functions that issue ops. The runtime, the backends and the
// layers above the runtime use it; it is not part of the public API. "(rule N)" in comments refers to
// docs/semantics.md.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/biased_lock.hpp"
#include "base/clock.hpp"
#include "base/sync.hpp"
#include "runtime/backend.hpp"
#include "slip/device.hpp"
#include "slip/observer.hpp"

namespace slip::runtime {

class Capture;
class StreamPool;

// Why a stream or a device no longer works.
struct Failure {
  ErrorCode code = ErrorCode::kOk;
  std::string text;
  std::uint64_t position = 0;  // in its stream: points before it are not affected
  Here here;
  std::uint64_t stream = 0;  // id of the stream; 0: already closed, or the device itself
};

// A failure that stays until clear(). Only the first one is kept. Any thread may use it.
class Sticky {
 public:
  bool set() const { return set_.load(std::memory_order_relaxed); }  // relaxed: value() takes the lock
  bool put(Failure failure);                                         // false: there is one already
  Failure value() const {
    const base::LockGuard lock(lock_);
    return failure_;
  }
  void clear() {
    const base::LockGuard lock(lock_);
    set_.store(false, std::memory_order_relaxed);
    failure_ = {};
  }

 private:
  std::atomic<bool> set_{false};
  mutable base::SpinLock lock_;
  Failure failure_ SLIP_GUARDED_BY(lock_);
};

// The name of a stream, for errors. Any thread may read it while another thread reuses the state for a new stream: the
// reader gets the name of the id that it asks for, or none. It has no lock, so a forked child may read it, too.
class StreamLabel {
 public:
  void set(std::uint64_t id, Name name) {
    id_.store(0, std::memory_order_relaxed);
    name_.store(name, std::memory_order_release);  // release: a reader of this name sees that the former id is gone
    id_.store(id, std::memory_order_release);      // release: a reader of this id sees this name or a later one
  }
  Name name_of(std::uint64_t id) const {  // empty: no name, or the state belongs to another stream now
    if (id == 0 || id_.load(std::memory_order_acquire) != id) return {};
    const Name name = name_.load(std::memory_order_acquire);
    return id_.load(std::memory_order_relaxed) == id ? name : Name();  // relaxed: the acquire above orders it
  }

 private:
  std::atomic<std::uint64_t> id_{0};
  std::atomic<Name> name_{};
};

// The state of a stream. It is never deleted, but reused under a new id. So a dangling StreamRef or an old Event still
// refers to a valid object. The StreamRef finds another id. The Event's position is reached, because positions continue
// when the state is reused.
struct StreamState {
  virtual ~StreamState() = default;
  // The fields that each call reads come first, on one cache line.
  std::atomic<std::uint64_t> id{0};  // 0: closed
  std::uint64_t last_id = 0;         // the current id, or the last one if it is closed; for traces
  DeviceCore* core = nullptr;
  std::atomic<Capture*> capture{nullptr};
  StreamFlags flags = StreamFlags::kBlocking;
  bool legacy = false;
  int priority = 0;
  // The id of the open device that uses this state, 0: none. An Event compares it before it reads `core`, because
  // another thread may write `core` for a new device meanwhile.
  std::atomic<std::uint32_t> device_id{0};
  Sticky failure;
  StreamLabel label;
  // Guards no data: makes submission and its record one step while an observer is attached.
  base::BiasedLock observed;
  Observer* audience = nullptr;  // see PrivateScope

  bool blocking() const { return flags == StreamFlags::kBlocking && !legacy; }
  virtual CUstream_st* native() { return nullptr; }
  virtual EventState* make_timed_event();  // for a timed record in this stream
  virtual bool compiles_plans() const { return false; }
};

// One allocation. Blocks are reused like StreamState.
struct Block {
  std::atomic<std::uint64_t> id{0};  // 0: freed
  DeviceCore* core = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t capacity = 0;  // stream-ordered: the bytes that the pool took for it, at least `bytes`
  MemoryKind kind = MemoryKind::kDevice;
  bool owned = true;                            // false: wrapped
  std::atomic<std::uint64_t> other_devices{0};  // whose ops used it: bit (device id modulo 64)
  StreamState* origin = nullptr;                // stream-ordered: the stream it was allocated in
  std::uint64_t origin_id = 0;
  Observer* audience = nullptr;  // see PrivateScope
  Name name;
};

// A program that gets only addresses wraps all of them in one Buffer, of about 2^63 bytes. Its owner frees the memory
// below such a Buffer while the Buffer exists, so no notification of base/memory_end.hpp comes.
inline bool covers_all_addresses(const Block& block) {
  constexpr std::size_t kMoreThanAnyMemory = std::size_t{1} << 62;
  return !block.owned && block.bytes >= kMoreThanAnyMemory;
}

// Counts device memory against a limit.
class MemoryLedger {
 public:
  void set_total(std::size_t bytes) {
    const base::LockGuard lock(lock_);
    total_ = bytes;
  }
  bool reserve(std::size_t bytes);  // false: over the limit
  void release(std::size_t bytes) {
    const base::LockGuard lock(lock_);
    reserved_ -= bytes;
  }
  void use(std::ptrdiff_t bytes) {
    const base::LockGuard lock(lock_);
    used_ = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(used_) + bytes);
  }
  void reset_peak() {
    const base::LockGuard lock(lock_);
    peak_ = reserved_;
  }
  MemoryInfo info() const {
    const base::LockGuard lock(lock_);
    return {used_, reserved_, peak_, total_};
  }

 private:
  mutable base::SpinLock lock_;
  std::size_t used_ SLIP_GUARDED_BY(lock_) = 0, reserved_ SLIP_GUARDED_BY(lock_) = 0;
  std::size_t peak_ SLIP_GUARDED_BY(lock_) = 0, total_ SLIP_GUARDED_BY(lock_) = 0;
};

// Keeps copies of pageable sources until their upload has run (rule 38).
class Staging {
 public:
  explicit Staging(Backend& backend) : backend_(backend) {}
  ~Staging();
  std::byte* take(std::size_t bytes);                                 // also frees the pieces whose upload is done
  void give(std::byte* data, std::size_t bytes, StreamPoint until) {  // to be freed once `until` is reached
    const base::LockGuard lock(mutex_);
    pieces_.push_back({data, bytes, until});
  }

 private:
  struct Piece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    StreamPoint until;
  };
  Backend& backend_;
  base::Mutex mutex_;
  std::vector<Piece> pieces_ SLIP_GUARDED_BY(mutex_);
};

// The devices whose memory the kernels of one device may access. Any thread may use it.
class EnabledPeers {
 public:
  bool add(std::uint32_t device) {  // false: it was enabled already
    const base::LockGuard lock(mutex_);
    return devices_.insert(device).second;
  }
  bool remove(std::uint32_t device) {  // false: it was not enabled
    const base::LockGuard lock(mutex_);
    return devices_.erase(device) != 0;
  }
  bool contains(std::uint32_t device) const {
    const base::LockGuard lock(mutex_);
    return devices_.contains(device);
  }

 private:
  mutable base::Mutex mutex_;
  std::set<std::uint32_t> devices_ SLIP_GUARDED_BY(mutex_);
};

// The open streams of a device that have a name: for observers that are attached later. Any thread may use it.
class NamedStreams {
 public:
  void add(std::uint64_t id, Name name) {
    const base::LockGuard lock(mutex_);
    names_[id] = name;
  }
  void remove(std::uint64_t id) {
    const base::LockGuard lock(mutex_);
    names_.erase(id);
  }
  template <class Visit>
  void for_each(const Visit& visit) const {  // visit(id, name), in the order in which they were opened
    const base::LockGuard lock(mutex_);
    for (const auto& [id, name] : names_) visit(id, name);
  }

 private:
  mutable base::Mutex mutex_;
  std::map<std::uint64_t, Name> names_ SLIP_GUARDED_BY(mutex_);
};

// A device whose driver itself implements pageable copies, copies between devices and stream-ordered memory.
struct NativeDevice {
  std::uint32_t ordinal = 0;             // number of the physical device
  std::vector<std::uint32_t> reachable;  // physical devices whose memory it can access, including itself
};

// The streams of a device that are capturing.
struct CaptureCounts {
  std::atomic<int> all{0};
  std::atomic<int> blocking{0};  // the blocking streams among them
};

struct DeviceCore : std::enable_shared_from_this<DeviceCore> {
  DeviceCore();
  ~DeviceCore();

  // Makes the backends of cores whose options are set, and fills in their info.
  using Opener = std::function<Backends(Cores)>;
  // Opens `count` devices under one name. Device::open_all calls it with a row of the backend table as `opener`.
  static std::vector<Device> open_all(const std::string& name, int count, const DeviceOptions& options,
                                      const Opener& opener, Here here);

  std::unique_ptr<Backend> backend;
  std::uint32_t id = 0;
  std::optional<NativeDevice> native;  // set when the device is opened, or never
  Sticky fault;                        // the device is lost
  DeviceOptions options;
  DeviceInfo info;
  MemoryLedger memory;
  Sticky stream_failure;             // of some stream: Device::sync reports it until that stream is closed
  std::unique_ptr<StreamPool> pool;  // null if the backend allocates in stream order itself
  std::unique_ptr<Staging> staging;
  StreamState* legacy = nullptr;
  bool forked = false;  // this process is a fork of the one that opened the device
  CaptureCounts captures;
  EnabledPeers peers;
  NamedStreams named_streams;
};

// --- Process exit and fork. Closing a device finishes its work; exit() drops the ops that have not started. A child of
// fork() cannot use the devices of its parent, because their threads do not exist there: every call on them throws. The
// child may open its own devices. ---

bool exiting();  // exit() has begun
namespace detail {
extern std::atomic<bool> exit_expected;  // the exit handler was registered after the last device was opened
void expect_exit();
}  // namespace detail

// Called when work is issued. From then on exiting() becomes true at exit before any static object that exists now is
// destroyed.
inline void expect_exit() {
  if (!detail::exit_expected.load(std::memory_order_relaxed)) [[unlikely]]
    detail::expect_exit();
}
// The list of open devices.
void register_device(DeviceCore& core);
void unregister_device(DeviceCore& core);
std::vector<std::shared_ptr<DeviceCore>> open_devices();

// Opens and closes streams, sets their ids, and notifies observers.
StreamState* open_stream(DeviceCore& core, const StreamSpec& spec);
void close_stream(StreamState& stream) noexcept;

// The stream in errors: "stream 5 'loads'". `id`: the stream that the caller means, if the state may be reused by now.
std::string stream_text(const StreamState& stream);
std::string stream_text(const StreamState& stream, std::uint64_t id);
// Throws the error of a call on a stream that was destroyed. Null: the reference is empty. Out of line, because the
// check before it is on the path of every op.
[[noreturn, gnu::cold, gnu::noinline]] void raise_destroyed(const StreamState* stream, std::uint64_t id, Here here);

// Waits for all work of the device, before memory or the device is freed. Does not wait if the process is exiting, or
// if it is a forked child.
void drain(DeviceCore& core) noexcept;

// Poisons a stream: it runs no more ops, and its next call throws. Only the first failure is kept.
void fail_stream(StreamState& stream, Failure failure);
// The failure of a stream whose op, at this position, threw.
Failure op_failure(ErrorCode code, OpKind kind, Name name, Here here, const char* why, std::uint64_t position);

// Reports to observers that the stream waits for another point from `position` on, without a call of the program.
// `other_id`: as Op::point_stream.
void notify_barrier(const StreamState& stream, std::uint64_t position, StreamPoint other, std::uint64_t other_id = 0,
                    Name name = {}, Here here = {});

// The path of every op from a call to the backend: checks stream and device, captures or submits, notifies observers.
std::uint64_t issue(StreamState& stream, const Op& op);
// Only submits the op: for a caller that has made the checks for several ops at once.
std::uint64_t enqueue(StreamState& stream, const Op& op);
// Waits for a point or kEverything (null stream: the whole device), notifies observers, throws failures. `id` is the id
// of the stream when the point was recorded; 0: its current id.
bool wait_for(DeviceCore& core, StreamState* stream, std::uint64_t position, std::int64_t deadline_ns, Here here,
              std::uint64_t id = 0);
// The same without blocking.
bool is_reached(DeviceCore& core, StreamState& stream, std::uint64_t position, Here here, std::uint64_t id = 0);
// The deadline of a wait for at most `limit`. At least 1 ns after now, because 0 means that there is no deadline.
inline std::int64_t deadline_of(std::chrono::nanoseconds limit) {
  return base::deadline_after(std::max<std::int64_t>(limit.count(), 1));
}

[[noreturn]] void raise(const Failure& failure, Here here);
namespace detail {
extern constinit thread_local int inside_op;  // depth of InsideOp on this thread
[[noreturn]] void raise_unusable(const DeviceCore& core, Here here);
}  // namespace detail

// Throws if the device is lost or the caller is inside an op.
inline void require_usable(const DeviceCore& core, Here here) {
  if (detail::inside_op != 0 || core.fault.set()) [[unlikely]]
    detail::raise_unusable(core, here);
}
// Makes the same check. Also throws if the stream is poisoned or a capture forbids its use.
void require_stream(const StreamState& stream, Here here);

// Throws if the range is outside its buffer, or the buffer was freed.
void require_range(const Range& range, const char* what, Here here);
// Throws if a kernel of `core` may not access the range. It may access memory of its own device, pinned memory, and
// memory of peers with access enabled.
void require_kernel_range(DeviceCore& core, const Range& range, Name kernel, Here here);
// Throws unless the range is a 32-bit flag for wait_value and write_value, in memory that the device can access.
void require_flag(const Range& flag, const char* what, Here here);
inline std::byte* address(const Range& range) { return range.block->data + range.offset; }

// While one exists, this thread runs an op, and the runtime refuses its calls.
class InsideOp {
 public:
  InsideOp() { ++detail::inside_op; }
  ~InsideOp() { --detail::inside_op; }
};

// An op of `core` uses memory that another device allocated: freeing the block must wait for `core`, too. relaxed:
// freeing it while another thread issues work on it is a race of the caller.
inline void note_other_device(Block& block, const DeviceCore& core) {
  block.other_devices.fetch_or(std::uint64_t{1} << core.id % 64, std::memory_order_relaxed);
}

// A block with a new id, not allocated in stream order. `core`: null for memory that belongs to no device.
Block* take_block(DeviceCore* core, MemoryKind kind, void* data, std::size_t bytes, Name name);
void drop_block(Block* block);  // its ranges become invalid
[[noreturn]] void raise_out_of_memory(const DeviceCore& core, std::size_t bytes, Name name, Here here);

// issue() for records and waits between streams. They are so frequent and short that setting up a whole Op would take
// most of their time. REQUIRES: the stream does not capture.
std::uint64_t issue_record(StreamState& stream, Here here);  // without a time stamp
// `point_stream`, `event`: see Op.
void issue_wait(StreamState& stream, StreamPoint point, std::uint64_t point_stream, EventState* event, Here here);

// --- Copies and fills: their checks, the engine that runs them, and when they block the host (rules 32-43, 73). ---

// Throws if the ranges differ in size or overlap.
void require_copy(const Range& to, const Range& from, Here here);
// StreamRef::copy and fill.
void copy_async(StreamState& stream, Range to, Range from, Name name, Here here);
void fill_async(StreamState& stream, Range to, unsigned char value, Name name, Here here);
// Device::copy and fill, in the default stream.
void copy_sync(StreamState& stream, Range to, Range from, Here here);
void fill_sync(StreamState& stream, Range to, unsigned char value, Here here);

// Stream-ordered free, and the memory records for observers.
void free_in_order(StreamState& stream, Range range, Here here);
void notify_memory(RecordKind kind, Range range, StreamState* stream, Here here);

}  // namespace slip::runtime
