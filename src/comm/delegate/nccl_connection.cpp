#include "comm/delegate/nccl_connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

#include "base/clock.hpp"
#include "base/terminal.hpp"
#include "base/thread.hpp"
#include "base/wait.hpp"

namespace slip::comm {
namespace {

// How long a destroyed communicator may take to end. NCCL waits for the other ranks of the host, which may destroy
// theirs later. After this time the communicator is aborted. On a blocking communicator (NcclCallMode::kDirect)
// ncclCommFinalize itself waits, without a deadline. So only the thread of destroy_in_background() calls it.
constexpr std::int64_t kDestroyNs = 30'000'000'000;
constexpr std::int64_t kExitNs = 5'000'000'000;  // the same at the end of the process
// How long abort() waits for a thread that is inside a call: before it revokes the communicator, and afterwards.
constexpr std::int64_t kShortCallNs = 50'000'000, kLockNs = 5'000'000'000;

// The number of communicators that background threads are destroying.
std::atomic<int>& unfinished() {
  static auto* const kCount = new std::atomic<int>(0);
  return *kCount;
}

// Makes exit() wait for the background threads. CUDA registered its exit functions earlier, so they run afterwards.
void register_exit_wait() {
  static const bool kRegistered = std::atexit([] { wait_for_destroyed_nccl(kExitNs); }) == 0;
  static_cast<void>(kRegistered);
}

void destroy(const NcclFunctions& nccl, NcclComm* comm) {
  NcclResult state = nccl.comm_finalize(comm);
  const std::int64_t deadline = base::now_ns() + kDestroyNs;
  for (base::Backoff backoff(base::kLibraryWait); state == NcclResult::kInProgress && base::now_ns() < deadline;) {
    backoff.pause();
    if (nccl.comm_get_async_error(comm, &state) != NcclResult::kSuccess) state = NcclResult::kInternalError;
  }
  static_cast<void>(state == NcclResult::kSuccess ? nccl.comm_destroy(comm) : nccl.comm_abort(comm));
}

// Uses a thread of its own, because NCCL waits until the other ranks of the host destroy their communicators, too.
void destroy_in_background(const NcclFunctions& nccl, NcclComm* comm) noexcept {
  register_exit_wait();
  unfinished().fetch_add(1, std::memory_order_relaxed);  // relaxed: the thread is started afterwards
  try {
    base::Thread thread;
    thread.start("slip-nccl-end", [&nccl, comm] {
      destroy(nccl, comm);
      unfinished().fetch_sub(1, std::memory_order_release);  // release: see wait_for_destroyed_nccl()
    });
    thread.detach();
  } catch (const std::exception&) {  // no more threads: an abort does not wait for other ranks
    static_cast<void>(nccl.comm_abort(comm));
    unfinished().fetch_sub(1, std::memory_order_release);  // release: as above
  }
}

// The memory to which NCCL writes the handle of a new communicator: at once, or later from a thread of its own. If that
// thread may still write, the memory is kept for the life of the process.
class HandleSlot : base::NoCopy {
 public:
  ~HandleSlot() {
    if (is_written_) return;
    const base::LockGuard lock(kept().mutex);
    kept().handles.push_back(std::move(handle_));
  }
  NcclComm** get() const { return handle_.get(); }
  // acquire: NCCL's thread has made the communicator.
  NcclComm* value() const { return __atomic_load_n(handle_.get(), __ATOMIC_ACQUIRE); }
  void set_written() { is_written_ = true; }  // NCCL will not write again

 private:
  struct Kept {
    base::Mutex mutex;
    std::vector<std::unique_ptr<NcclComm*>> handles SLIP_GUARDED_BY(mutex);
  };
  static Kept& kept() { return base::process_wide<Kept>(); }

  std::unique_ptr<NcclComm*> handle_ = std::make_unique<NcclComm*>(nullptr);
  bool is_written_ = false;
};

ErrorCode code_of(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess: return ErrorCode::kOk;
    case NcclResult::kUnhandledCudaError: return ErrorCode::kLaunchFailed;
    case NcclResult::kInvalidArgument: return ErrorCode::kInvalidValue;
    case NcclResult::kInvalidUsage: return ErrorCode::kUnsupported;
    case NcclResult::kRemoteError: return ErrorCode::kRankLost;
    case NcclResult::kInProgress: return ErrorCode::kNotReady;
    default: return ErrorCode::kIo;
  }
}

}  // namespace

void wait_for_destroyed_nccl(std::int64_t max_ns) {
  const std::int64_t deadline = base::now_ns() + max_ns;
  // acquire: the memory writes of the threads are visible.
  for (base::Backoff backoff(base::kLibraryWait);
       unfinished().load(std::memory_order_acquire) > 0 && base::now_ns() < deadline;)
    backoff.pause();
}

NcclCallMode best_call_mode(const NcclLibrary& library) {
  return library.functions.comm_split && library.functions.comm_revoke ? NcclCallMode::kDirect : NcclCallMode::kPolled;
}

NcclConnection::~NcclConnection() {
  const base::LockGuard lock(mutex_);
  for (NcclComm* const comm : {comm_, parent_}) {
    if (comm) destroy_in_background(library_.functions, comm);
  }
}

Error NcclConnection::error_of(NcclResult result) {
  const char* const why = library_.functions.get_error_string(result);
  const char* const last = library_.functions.get_last_error(nullptr);  // the last error of the process
  std::string more = base::single_line_text(last ? last : "");
  while (more.ends_with(' ')) more.pop_back();
  return {code_of(result),
          fmt::format("NCCL {}: {}{}", nccl_version_text(library_.version), why ? why : "?",
                      more.empty() ? "" : fmt::format(" ({})", more)),
          {}};
}

NcclResult NcclConnection::wait(const Check& check) {
  for (base::Backoff backoff(base::kDeviceQueryWait);; backoff.pause()) {
    {
      const base::LockGuard lock(mutex_);
      NcclResult state = NcclResult::kSuccess;
      if (!comm_) return NcclResult::kInvalidUsage;
      const NcclResult asked = library_.functions.comm_get_async_error(comm_, &state);
      if (asked != NcclResult::kSuccess) return asked;
      if (state != NcclResult::kInProgress) return state;
    }
    check();
  }
}

void NcclConnection::join(const NcclUniqueId& id, int nranks, int rank, const Check& check) {
  NcclResult result = NcclResult::kSuccess;
  HandleSlot made;
  {
    const base::LockGuard lock(mutex_);
    NcclConfig config;
    result = library_.functions.comm_init_rank_config(made.get(), nranks, id, rank, &config);
    comm_ = made.value();
  }
  try {
    if (result == NcclResult::kInProgress || result == NcclResult::kSuccess) result = wait(check);
    if (result != NcclResult::kSuccess) throw error_of(result);
    made.set_written();
    if (mode_ == NcclCallMode::kDirect) split_off(rank, check);
  } catch (...) {
    abort();
    throw;
  }
}

// ncclCommSplit itself does not block, because the parent communicator is non-blocking.
void NcclConnection::split_off(int rank, const Check& check) {
  HandleSlot child;
  NcclResult result = NcclResult::kSuccess;
  {
    const base::LockGuard lock(mutex_);
    NcclConfig config;
    config.blocking = 1;
    result = library_.functions.comm_split(comm_, 0, rank, child.get(), &config);
  }
  if (result == NcclResult::kInProgress || result == NcclResult::kSuccess) result = wait(check);
  if (result != NcclResult::kSuccess) throw error_of(result);
  child.set_written();
  const base::LockGuard lock(mutex_);
  parent_ = std::exchange(comm_, child.value());
  if (!comm_) throw Error(ErrorCode::kIo, "NCCL made no communicator", {});
}

void NcclConnection::end_init() {
  const base::LockGuard lock(mutex_);
  if (parent_) destroy_in_background(library_.functions, std::exchange(parent_, nullptr));
}

void NcclConnection::run(const Call& call, const Check& check) {
  NcclResult result = NcclResult::kSuccess;
  {
    const base::LockGuard lock(mutex_);
    if (!comm_) throw Error(ErrorCode::kAborted, "the communicator was aborted", {});
    const bool is_direct = mode_ == NcclCallMode::kDirect;
    if (is_direct) inside_since_ns_.store(base::now_ns(), std::memory_order_relaxed);  // relaxed: a hint
    result = call(comm_);
    if (is_direct) inside_since_ns_.store(0, std::memory_order_relaxed);
  }
  if (result == NcclResult::kInProgress) result = wait(check);
  if (result == NcclResult::kSuccess) [[likely]]
    return;
  check();  // if another rank is lost, throws that: it is the cause
  throw error_of(result);
}

std::optional<Error> NcclConnection::error() {
  if (!mutex_.try_lock()) return std::nullopt;
  NcclResult state = NcclResult::kSuccess;
  NcclResult asked = NcclResult::kSuccess;
  if (comm_) asked = library_.functions.comm_get_async_error(comm_, &state);
  mutex_.unlock();
  if (asked != NcclResult::kSuccess) state = asked;
  if (state == NcclResult::kSuccess || state == NcclResult::kInProgress) return std::nullopt;
  return error_of(state);
}

// A thread may wait inside NCCL and hold the mutex. ncclCommRevoke ends that wait without freeing the communicator. If
// the thread still does not return, this function aborts without the mutex. No thread-safety analysis: only join(),
// end_init() and this function write the pointers, and no two of them run at the same time.
void NcclConnection::abort() noexcept SLIP_NO_THREAD_SAFETY_ANALYSIS {
  const auto lock_within = [this](std::int64_t time_ns) SLIP_NO_THREAD_SAFETY_ANALYSIS {
    const std::int64_t deadline = base::now_ns() + time_ns;
    for (base::Backoff backoff(base::kLibraryWait); !mutex_.try_lock(); backoff.pause()) {
      if (base::now_ns() > deadline) return false;
    }
    return true;
  };
  bool locked = lock_within(kShortCallNs);
  if (!locked) {
    if (mode_ == NcclCallMode::kDirect && comm_) static_cast<void>(library_.functions.comm_revoke(comm_, 0));
    locked = lock_within(kLockNs);
  }
  for (NcclComm** const comm : {&comm_, &parent_}) {
    if (NcclComm* const aborted = std::exchange(*comm, nullptr))
      static_cast<void>(library_.functions.comm_abort(aborted));
  }
  if (locked) mutex_.unlock();
}

std::vector<int> awaited_ranks(const Signature& call, std::vector<int> others, const DepartedCalls& departed) {
  if (call.kind() == Collective::kMessage) return others;
  std::erase_if(others, [&](int rank) {
    const std::optional<std::uint64_t> calls = departed(rank);
    // The difference as a signed number, because call numbers wrap around after 2^32.
    return calls && static_cast<std::int32_t>(static_cast<std::uint32_t>(*calls) - call.number()) >= 0;
  });
  return others;
}

std::optional<int> find_departed(const Signature& call, std::span<const int> awaited, const DepartedCalls& departed) {
  const auto has_left = [&](int rank) { return departed(rank).has_value(); };
  const auto found = std::find_if(awaited.begin(), awaited.end(), has_left);
  if (found == awaited.end()) return std::nullopt;
  if (call.kind() == Collective::kMessage && !std::all_of(awaited.begin(), awaited.end(), has_left))
    return std::nullopt;
  return *found;
}

}  // namespace slip::comm
