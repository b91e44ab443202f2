// Comm: the object behind an ncclComm_t. It has a slip::Communicator, its device, the streams that calls have used, and
// the state that ncclCommGetAsyncError reports.
//
// A handle, ncclComm_t, points to a slot of a table that is never freed. So any value that a caller passes can be
// checked without touching freed memory: whether it is a slot of the table, and whether the slot is open.
//
// A call holds a Pin: the communicator is deleted by the last Pin after it was closed. So one thread may abort a
// communicator while another thread is inside a call. Any thread may call any function while it holds a Pin.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/sync.hpp"
#include "nccl/api.hpp"
#include "nccl/gpus.hpp"
#include "nccl/nccl.h"
#include "slip/communicator.hpp"

namespace slip::nccl {
class Comm;
}

// A slot. `uses` has the flag kOpen and the number of Pins. Each slot has its own cache line: when threads with one
// rank each shared one, a short call took twice as long.
struct alignas(64) ncclComm {
  static constexpr std::uint32_t kOpen = 1U << 31;
  std::atomic<std::uint32_t> uses{0};
  slip::nccl::Comm* comm = nullptr;  // constant while kOpen is set or a Pin exists
};

namespace slip::nccl {

// ncclConfig_t, and the environment variables of NCCL, as options of a communicator.
struct CommConfig {
  bool blocking = true;
  CommunicatorOptions options = {};
};

// Reads the caller's config, which may be null or of an older version. Throws ApiError if it has an impossible value.
CommConfig read_config(const ncclConfig_t* config);
// The config of a new communicator that is made from an existing one. It inherits the fields that the caller leaves
// undefined, but `blocking` only if there is no config at all.
CommConfig read_config(const ncclConfig_t* config, const CommConfig& parent);
std::chrono::milliseconds init_timeout();  // SLIP_NCCL_INIT_TIMEOUT

// Other objects that belong to a communicator: operators of ncclRedOpCreatePreMulSum, and registered buffers.
//
// Any thread may call any function.

struct PreMulOp {
  int id = 0;  // the value of the ncclRedOp_t; unique in the process: another communicator refuses it
  ncclDataType_t type = ncclFloat32;
  double factor = 1;
  const void* device_factor = nullptr;  // not null: a collective reads the factor from here when it is called
};

class PreMulOps {
 public:
  int add(PreMulOp op);  // returns the new id
  bool remove(int id);
  std::optional<PreMulOp> find(int id) const;

 private:
  mutable base::SpinLock lock_;
  std::vector<PreMulOp> ops_ SLIP_GUARDED_BY(lock_);
};

// The handles of registered buffers. A registration has no effect; a handle is kept so that ncclCommDeregister can
// refuse an unknown one.
class Registrations {
 public:
  void* add();
  bool remove(const void* handle);

 private:
  base::SpinLock lock_;
  std::list<char> all_ SLIP_GUARDED_BY(lock_);  // the address of an element is the handle
};

// Reads single values of device memory. It keeps its pinned buffer: freeing one for each call would wait for the
// device.
class ValueReader {
 public:
  // Copies a value when all earlier work of the stream is done. Waits for it.
  void read(const RankDevice& device, const void* from, std::size_t bytes, const StreamRef& stream, void* to);

 private:
  base::Mutex mutex_;
  Buffer pinned_ SLIP_GUARDED_BY(mutex_);
};

// Each guards itself.
struct CommTables {
  ValueReader values;
  PreMulOps ops;
  Registrations registrations;
};

class Comm {
 public:
  Comm(std::shared_ptr<RankDevice> device, int rank, int nranks, CommConfig config)
      : device_(std::move(device)), rank_(rank), nranks_(nranks), config_(std::move(config)) {}
  ~Comm();

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  bool is_blocking() const { return config_.blocking; }
  const CommConfig& config() const { return config_; }
  // Communicators that split and shrink make from this one use it, too.
  const std::shared_ptr<RankDevice>& shared_device() const { return device_; }
  RankDevice& device() const { return *device_; }

  // Init ends with set() or fail(). If abort() was called before set(), set() aborts the new communicator.
  void set(Communicator&& communicator);
  void fail(const Outcome& outcome);
  // For split and shrink: rank() and nranks() are known only when the new communicator exists.
  void set_ranks(const Communicator& communicator);
  // A non-blocking call runs between begin_job() and end_job(); meanwhile state() returns ncclInProgress, and
  // afterwards the error of the call, until the next one begins. The communicator stays usable.
  void begin_job();
  void end_job(const Outcome& outcome = {});

  // Init has not ended, or a non-blocking call runs. acquire: see end_job(), set() and fail().
  bool is_making() const {
    return jobs_.load(std::memory_order_acquire) > 0 || state_.load(std::memory_order_acquire) == ncclInProgress;
  }
  Outcome state() const;  // for ncclCommGetAsyncError; never blocks
  // Throws ApiError if init has not ended, if init failed, or if a non-blocking call runs.
  void require_ready() const;
  // Later calls of this rank are refused; only destroy and abort work. REQUIRES: require_ready().
  void finalize();
  // REQUIRES: require_ready().
  Communicator& communicator() { return *communicator_; }
  void abort() noexcept;
  // Ends the unfinished calls of all ranks. Later calls of this rank are refused; split, shrink and destroy work.
  // Throws ApiError if it was revoked or finalized before. REQUIRES: require_ready().
  void revoke();
  bool is_revoked() const { return use_.load(std::memory_order_relaxed) == Use::kRevoked; }  // relaxed: see Use

  // The stream of a call. Host mode: this communicator's own stream. With a GPU: `native` adopted.
  StreamRef stream(CUstream_st* native);
  // Host mode: waits until the calls so far are done, or returns ncclInProgress if the communicator is non-blocking.
  // With a GPU calls are asynchronous, so it returns ncclSuccess.
  ncclResult_t finish_calls();

  CommTables& tables() { return tables_; }

  void keep_error(const std::string& text);  // for ncclGetLastError
  std::string kept_error() const;

 private:
  Stream adopt(CUstream_st* native) const;

  // The calls that are accepted. Its orderings are relaxed: no other data belongs to it.
  enum class Use : unsigned char { kAll, kFinalized, kRevoked };

  const std::shared_ptr<RankDevice> device_;
  int rank_, nranks_;
  const CommConfig config_;
  std::atomic<int> state_{ncclInProgress};  // of init: ncclSuccess once communicator_ is set
  std::atomic<int> jobs_{0};
  std::atomic<Use> use_{Use::kAll};
  std::optional<Communicator> communicator_;  // constant once state_ is ncclSuccess
  CommTables tables_;
  // Guards the members below. base::SpinLock: critical sections are short, and a program makes the calls of one
  // communicator from one thread at a time, so threads rarely wait for the lock.
  mutable base::SpinLock lock_;
  bool aborted_ SLIP_GUARDED_BY(lock_) = false;
  Outcome job_error_ SLIP_GUARDED_BY(lock_) = {};  // of init, or of the last non-blocking call
  // A stream of the caller, who may destroy it at any time. The id of a CUDA stream is unique in the process.
  struct KnownStream {
    CUstream_st* native = nullptr;
    std::uint64_t id = 0;
    Stream stream;
  };
  std::vector<KnownStream> streams_ SLIP_GUARDED_BY(lock_);
  std::string error_ SLIP_GUARDED_BY(lock_);
};

class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Pin& operator=(Pin&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Pin() {
    if (slot_) release();
  }

  static Pin of(ncclComm_t handle);             // throws ApiError if the handle is null, unknown or closed
  static Pin find(ncclComm_t handle) noexcept;  // empty instead
  // Takes ownership, also if it throws, and returns a Pin of the new, open handle. Throws ApiError if no slot is free.
  static Pin open(Comm* comm);

  Comm* operator->() const { return slot_->comm; }
  Comm& operator*() const { return *slot_->comm; }
  ncclComm_t handle() const { return slot_; }
  explicit operator bool() const { return slot_ != nullptr; }

  // Closes the handle: no further Pin can be taken. False: another thread has closed it.
  bool close() const noexcept;

 private:
  explicit Pin(ncclComm* slot) : slot_(slot) {}
  void release() noexcept;
  ncclComm* slot_ = nullptr;
};

}  // namespace slip::nccl
