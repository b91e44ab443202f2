// NcclConnection: this rank's communicator of NVIDIA's NCCL. The watch thread may abort it while another thread uses
// it.
//
// Every wait for other ranks can be ended. Init uses a non-blocking communicator: NCCL does not wait there; this class
// polls, and the caller's Check ends the wait. Calls have two modes:
//
// kDirect: on a blocking communicator, which is split off the first one. NCCL enqueues the work in the calling thread.
// It waits there only if it must connect to ranks for the first time; ncclCommRevoke (NCCL 2.28) ends that wait.
//
// kPolled: on the non-blocking communicator. NCCL starts a thread for each call, which costs about 40 us. Versions
// before 2.28 have no other way to end a wait inside a call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/call.hpp"
#include "comm/delegate/nccl_library.hpp"
#include "slip/error.hpp"

namespace slip::comm {

enum class NcclCallMode : std::uint8_t { kDirect, kPolled };
NcclCallMode best_call_mode(const NcclLibrary& library);

class NcclConnection : base::NoCopy {
 public:
  // Called again and again while a thread waits. Throws if the wait must end.
  using Check = std::function<void()>;
  using Call = std::function<NcclResult(NcclComm*)>;

  NcclConnection(const NcclLibrary& library, NcclCallMode mode) : library_(library), mode_(mode) {}
  // Does not wait for other ranks: a thread of its own destroys the communicator.
  ~NcclConnection();

  const NcclLibrary& library() const { return library_; }
  NcclCallMode mode() const { return mode_; }

  // All ranks call it, once. Returns when all have joined.
  void join(const NcclUniqueId& id, int nranks, int rank, const Check& check);
  // Call it when all ranks have returned from join(): frees what init alone needed.
  void end_init();
  // Calls NCCL and returns when the work is enqueued. If NCCL must first connect to other ranks, this waits for them.
  // Throws if NCCL returns an error, and if the communicator was aborted. kPolled: `check` ends the wait. kDirect: only
  // abort() does.
  void run(const Call& call, const Check& check);
  // kDirect: the time in now_ns() at which a thread entered NCCL; 0: no thread is inside NCCL.
  std::int64_t inside_since_ns() const { return inside_since_ns_.load(std::memory_order_relaxed); }  // relaxed: a hint
  // The error that NCCL has found in the background, if any. Empty while another thread is inside a call.
  std::optional<Error> error();
  // Ends all work of the communicator, also on the device, and calls that other threads make. Later calls throw.
  void abort() noexcept;

 private:
  NcclResult wait(const Check& check);
  void split_off(int rank, const Check& check);
  Error error_of(NcclResult result);

  const NcclLibrary& library_;
  const NcclCallMode mode_;
  std::atomic<std::int64_t> inside_since_ns_{0};
  // Held by the thread that is inside NCCL, except for ncclCommRevoke.
  base::Mutex mutex_;
  NcclComm* comm_ SLIP_GUARDED_BY(mutex_) = nullptr;    // null: not joined yet, or aborted
  NcclComm* parent_ SLIP_GUARDED_BY(mutex_) = nullptr;  // kDirect: the communicator of init, until end_init()
};

// Waits at most this long until the background threads have destroyed their communicators. Runs when the process ends.
void wait_for_destroyed_nccl(std::int64_t max_ns);

// The functions below find departed ranks for which a call of NCCL waits for ever. A rank leaves only after its own
// calls have ended, and it may leave while other ranks still wait for each other in the same call. NCCL does not report
// for which ranks it waits.
//
// A replayed CUDA graph makes its calls again under the same numbers. So if a rank leaves before the last launch of the
// graph, only the deadline ends the wait for it.

// How many collective calls a departed rank had made; empty: the rank has not left.
using DepartedCalls = std::function<std::optional<std::uint64_t>(int rank)>;

// The ranks for which the call may wait: `others` without those that left after they had made the call. For messages:
// all of `others`, because it is not known which messages have arrived.
std::vector<int> awaited_ranks(const Signature& call, std::vector<int> others, const DepartedCalls& departed);

// A departed rank for which the call waits for ever, if there is one. A collective waits for each awaited rank.
// Messages wait for ever only if all awaited ranks have left: as long as one rank has not left, they may wait for it.
std::optional<int> find_departed(const Signature& call, std::span<const int> awaited, const DepartedCalls& departed);

}  // namespace slip::comm
