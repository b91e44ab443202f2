// NcclWatch: the thread that watches the calls which one rank has passed to NCCL. It writes the ledger. After an error,
// a lost rank, a mismatch or the deadline it aborts NCCL's communicator, which ends the calls that wait.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/gpu_calls.hpp"
#include "comm/cuda/cuda_streams.hpp"
#include "comm/delegate/nccl_connection.hpp"
#include "comm/diagnose/call_history.hpp"

namespace slip::comm {

// Pinned host memory. The stream writes there before and after each call.
struct alignas(64) NcclPage {
  std::uint32_t state = 0;  // 2t + 1: call t runs; 2t: it has ended. t: the low bits of its ticket

  static std::uint32_t begun(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket << 1 | 1); }
  static std::uint32_t ended(std::uint64_t ticket) { return static_cast<std::uint32_t>(ticket << 1); }
};

class NcclWatch {
 public:
  struct Setup {
    transport::Bootstrap* bootstrap = nullptr;
    NcclConnection* connection = nullptr;
    const NcclPage* page = nullptr;
    int gpu = 0;
  };
  void start(const Setup& setup, GpuWatch watch);
  void stop() noexcept { thread_.stop(); }

  // The enqueuing thread notes each call before it enqueues it, so that the watch thread can name it.
  struct Noted {
    std::uint64_t ticket = 0;
    Signature signature;
    std::vector<int> peers;  // of sends and receives
  };
  void note(const Noted& call);
  // Its position in the stream: the watch thread fails the stream of a call that cannot end.
  void note_position(runtime::StreamState& stream, std::uint64_t position, CallUse use) {
    streams_.note(stream, position, use);
  }
  void drain() noexcept { streams_.drain(); }

  // A wait for other ranks in a call: of the stream, or of the enqueuing thread while NCCL connects.
  struct PeerWait {
    std::int64_t since_ns = 0;
    std::int64_t ask_ns = 0, ask_pause_ns = 0;  // when this rank next asks the others for their calls
    std::int64_t departed_ns = 0;               // since when it has waited for a departed rank; 0: it does not
  };
  static PeerWait wait_from(std::int64_t since_ns);
  // Throws if the wait cannot end: the communicator has failed, a rank has left or made another call, or the deadline
  // has passed. Any thread may call it.
  void check(PeerWait& wait, const Noted& call) const;
  // Makes the communicator fail on all ranks, unless it has an earlier error. Returns its first error.
  Error fail(const Error& error) const;

 private:
  void look();
  void keep_ledger(std::uint32_t state);
  void check_inside();
  void check_progress(std::uint32_t state);
  bool changes_soon(std::uint32_t state) const;
  // The ranks that have not made the call, or the peers of messages. Throws CallMismatch if a rank has made another
  // one.
  std::vector<int> compare_calls(const Noted& call) const;
  CallHistory::Snapshot own_calls() const;
  DepartedCalls departed_calls() const;
  Noted call_of(std::uint32_t state) const;

  Setup setup_;
  GpuWatch watch_;
  WatchThread thread_;
  // The following belong to the watch thread.
  bool failed_ = false;
  std::uint32_t last_state_ = 0;
  PeerWait wait_;         // of the call of last_state_
  PeerWait inside_wait_;  // of the thread that is inside a call of NCCL

  PendingStreams streams_;
  mutable base::Mutex mutex_;
  std::array<Noted, 256> noted_ SLIP_GUARDED_BY(mutex_){};  // by ticket
  std::uint64_t last_ticket_ SLIP_GUARDED_BY(mutex_) = 0;
};

}  // namespace slip::comm
