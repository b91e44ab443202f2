// CallOrder: enqueues the calls of one rank in CUDA streams, one after the other. PendingStreams: the streams with
// calls that may not have ended; after an error the watch thread makes these streams fail. WatchThread: that thread.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "comm/api/gpu_calls.hpp"
#include "slip/device.hpp"

namespace slip::comm {

int gpu_of(const Device& device);  // the device's CUDA ordinal

// Kernels that reduce access whole elements. Throws kInvalidValue if a buffer of the call is not aligned to them.
void require_aligned(const GpuCall& asked, Here here);

// The id of the CUDA capture in which the stream is; 0: none.
unsigned long long capture_of(cudaStream_t stream);

// kCaptured: the call runs when the program launches its CUDA graph, which need not be in the stream of the call.
enum class CallUse : std::uint8_t { kRuns, kCaptured };

// One thread at a time may use it.
class CallOrder : base::NoCopy {
 public:
  explicit CallOrder(const Device& device) : device_(device), gpu_(gpu_of(device)) {}
  ~CallOrder();

  // Throws unless the stream is of the same GPU.
  void require_stream_of_device(const runtime::StreamState& stream, Here here) const;
  // Enqueues the op and returns its position. `put` enqueues the work of the op in the CUDA stream. `other_threads`:
  // `put` makes CUDA calls in other threads, as NCCL does. REQUIRES: the GPU is current.
  // The calls of a communicator run one after the other, also in different streams: the op waits for the last call.
  // Calls of a CUDA capture wait only for the last call of the same capture; the program must order the launches of its
  // graph and its other calls.
  std::uint64_t enqueue(Op& op, runtime::StreamState& stream, GpuCalls::Submit& submit,
                        const std::function<void(cudaStream_t)>& put, bool other_threads = false);
  CallUse last_use() const { return last_use_; }            // of the call that enqueue() enqueued last
  bool has_captured() const { return !captures_.empty(); }  // whether any call was captured

 private:
  struct Captured {
    unsigned long long capture = 0;  // its id
    cudaStream_t native = nullptr;   // the stream of its last call
    cudaEvent_t event = nullptr;     // recorded after that call
  };
  Captured& captured_in(unsigned long long capture);

  const Device device_;
  const int gpu_;
  struct Eager {  // the last call that is not captured
    runtime::StreamState* stream = nullptr;
    std::uint64_t position = 0;
  };
  Eager eager_;
  CallUse last_use_ = CallUse::kRuns;
  std::vector<Captured> captures_;  // the most recent ones, in the order of their first calls
};

// A rank on a GPU whose calls are kernels in the streams of the caller.
class GpuRank : public GpuCalls {
 protected:
  GpuRank(transport::Bootstrap& bootstrap, const Device& device)
      : bootstrap_(bootstrap),
        rank_(bootstrap.rank()),
        nranks_(bootstrap.nranks()),
        gpu_(gpu_of(device)),
        order_(device) {}

  transport::Bootstrap& bootstrap_;
  const int rank_, nranks_, gpu_;
  CallOrder order_;  // used by the thread that enqueues a call; the communicator's mutex orders them
};

// Any thread may use it.
class PendingStreams {
 public:
  void note(runtime::StreamState& stream, std::uint64_t position, CallUse use);
  // Makes the streams fail whose last call has not ended, so that a thread that waits for them throws the error. The
  // watch thread calls it before it ends the calls that wait. A stream that is noted later fails at once.
  void fail(const Error& error);
  void drain() noexcept;  // returns when all calls have ended, except those of captures under way

 private:
  struct Pending {
    runtime::StreamState* stream = nullptr;
    std::uint64_t id = 0, position = 0;  // the stream's id at note(), and the position of the call
    CallUse use = CallUse::kRuns;
  };
  static bool can_query(const Pending& one);
  static void fail(const Pending& one, const Error& error);
  base::Mutex mutex_;
  std::vector<Pending> pending_ SLIP_GUARDED_BY(mutex_);  // of each stream the last call of each CallUse
  std::optional<Error> error_ SLIP_GUARDED_BY(mutex_);
};

// Calls look() once every millisecond, until stop(). The GPU is current in look(), and look() may call CUDA while
// another thread captures. fail() gets the errors that look() throws.
class WatchThread {
 public:
  void start(const char* name, int gpu, std::function<void()> look,
             std::function<void(ErrorCode, const std::string& text)> fail);
  void stop() noexcept;
  // Whether stop() was called.
  bool ends() const { return ends_.load(std::memory_order_relaxed); }

 private:
  base::Thread thread_;
  std::atomic<bool> ends_{false};  // relaxed: no other data is published with it
};

}  // namespace slip::comm
