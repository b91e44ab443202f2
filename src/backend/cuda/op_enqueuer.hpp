// OpEnqueuer: translates an op into the CUDA calls that enqueue it in one stream. It knows no other stream: CudaBackend
// makes the stream wait first. Any thread may use it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "backend/cuda/cuda_stream.hpp"
#include "runtime/core.hpp"

namespace slip::backend {

// A plan as a CUDA graph, with the data that its nodes refer to.
struct CompiledPlan;

// Runs the function of an op. If it throws, its stream fails.
void run_host_function(const std::function<void()>& function, runtime::StreamState& stream, Name name, Here here,
                       std::uint64_t position);

class OpEnqueuer : base::NoCopy {
 public:
  OpEnqueuer(runtime::DeviceCore& core, int gpu) : core_(core), gpu_(gpu), events_(EventPool::of(gpu)) {}
  ~OpEnqueuer();
  void make_pool();  // for stream-ordered memory. REQUIRES: the GPU is current. Call it before the first op

  void enqueue(CudaStream& stream, const Op& op, std::uint64_t position) SLIP_REQUIRES(stream.submitting);
  // The part of it that needs only the CUDA stream, not its state.
  void put(cudaStream_t stream, const Op& op) const;
  void launch_kernel(cudaStream_t stream, const Op& op) const;
  // Records the event of the op, or a new one, as a mark at the position.
  void record(CudaStream& stream, const Op& op, std::uint64_t position) SLIP_REQUIRES(stream.submitting);
  // Records a mark at the end of the stream, which has submitted `end` ops.
  EventUse record_end(CudaStream& stream, std::uint64_t end, Here here) SLIP_REQUIRES(stream.submitting);
  // Throws unless the call succeeded. A sticky error becomes the fault of the device.
  void checked(cudaError_t status, const char* call, const Op& op) const;

 private:
  void wait_or_write_value(cudaStream_t stream, const Op& op) const;
  void call_on_host(CudaStream& stream, const Op& op, std::uint64_t position) SLIP_REQUIRES(stream.submitting);
  // graph.cpp
  void launch_plan(CudaStream& stream, const Op& op, std::uint64_t position) SLIP_REQUIRES(stream.submitting);
  std::shared_ptr<CompiledPlan> compile(const runtime::PlanOps& plan) const;

  runtime::DeviceCore& core_;
  const int gpu_;
  EventPool& events_;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace slip::backend
