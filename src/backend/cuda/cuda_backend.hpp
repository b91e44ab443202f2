// CudaBackend: a GPU as a device. CUDA implements the stream semantics (docs/semantics.md); this class opens
// streams, orders ops of different streams and waits for them. OpEnqueuer translates an op into CUDA calls. All public
// functions may be called by any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "backend/cuda/cuda_stream.hpp"
#include "backend/cuda/op_enqueuer.hpp"
#include "backend/cuda/run_times.hpp"
#include "runtime/core.hpp"

namespace slip::backend {

// Whether ops of the CUDA stream are captured instead of run.
bool is_capturing(cudaStream_t stream);

class CudaBackend final : public runtime::Backend {
 public:
  CudaBackend(runtime::DeviceCore& core, int gpu);
  ~CudaBackend() override;

  void* allocate(MemoryKind kind, std::size_t bytes) override;
  void deallocate(MemoryKind kind, void* data, std::size_t bytes) noexcept override;
  runtime::StreamState* open_stream(const runtime::StreamSpec& spec) override;
  void close_stream(runtime::StreamState& stream) noexcept override;
  std::uint64_t submit(runtime::StreamState& stream, const Op& op) override;
  bool reached(runtime::StreamState& stream, std::uint64_t position) override;
  bool wait(runtime::StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) override;
  Picos now() override;

 private:
  void make_current() const;
  void fill_info();
  void reach_peers();
  CudaStream* find_drained() SLIP_REQUIRES(mutex_);

  // submit.cpp
  std::uint64_t submit_any(CudaStream& stream, const Op& op);
  // A wait that must precede the next op of a legacy or blocking stream.
  struct Barrier {
    EventUse event;                    // empty: already reached
    std::atomic<std::uint64_t>* seen;  // set to `end` after the wait was issued, under the lock of the waiting stream
    std::uint64_t end;
  };
  std::vector<Barrier> barriers_before(CudaStream& stream, Here here);
  void wait_for_point(CudaStream& stream, const Op& op);
  EventUse event_for(CudaStream& target, std::uint64_t position, Here here);
  EventUse mark_end(CudaStream& target, Here here);

  // Whether a query says that the work is done. An error becomes the fault of the device and counts as done, because
  // nothing more will run. Throws if the query is not allowed because a stream captures.
  bool done(cudaError_t status, const char* call);
  void lose(cudaError_t status, const char* call);
  bool wait_for_all(std::int64_t deadline_ns);
  bool wait_for_event(const EventUse& event, std::int64_t deadline_ns);
  bool poll(std::int64_t deadline_ns, const char* call, const std::function<cudaError_t()>& query);

  runtime::DeviceCore& core_;
  const int gpu_;
  const bool only_gpu_;
  OpEnqueuer enqueuer_;
  RunTimes times_;

  CudaStream* legacy_ = nullptr;  // constant after the device is opened
  base::Mutex mutex_;
  std::vector<CudaStream*> streams_ SLIP_GUARDED_BY(mutex_);  // also closed ones
};

runtime::Backends open_cuda(std::string_view rest, runtime::Cores cores);

}  // namespace slip::backend
