// CudaHosts: one rank of a communicator whose ranks are on GPUs of several hosts. The data of a call passes through
// pinned memory in parts, see comm/staged/staged_call.hpp. The stream copies the parts and waits for flags; a
// StagedThread runs them over the network.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "comm/api/gpu_calls.hpp"
#include "comm/cuda/cuda_streams.hpp"
#include "comm/staged/staged_thread.hpp"

namespace slip::comm {

class CudaHosts final : public GpuCalls {
 public:
  static std::unique_ptr<GpuCalls> meet(transport::Bootstrap& bootstrap, const Device& device);
  ~CudaHosts() override;

  void start(GpuWatch watch) override;
  void stop() noexcept override { thread_.stop(); }
  std::uint64_t start_call(const GpuCall& call, Op& op, runtime::StreamState& stream, Submit& submit) override;
  std::uint64_t start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                               runtime::StreamState& stream, Submit& submit) override;
  bool runs_on_host() const override { return true; }
  void drain() noexcept override { pending_.drain(); }

 private:
  CudaHosts(transport::Bootstrap& bootstrap, const Device& device);
  // Enqueues `steps_`.
  std::uint64_t enqueue(StagedCall call, Op& op, runtime::StreamState& stream, Submit& submit);
  void put(std::uint32_t id, cudaStream_t stream, bool& posts) const;
  class CopyBatch;
  void put_copy(const StagedStep& step, CopyBatch& copies, cudaStream_t stream) const;

  const int rank_, nranks_, gpu_;
  bool shares_gpu_ = false;  // with another rank of this process
  std::shared_ptr<StagingMemory> memory_;
  PendingStreams pending_;
  std::function<void(ErrorCode, const std::string& text)> fail_;  // makes the communicator fail on all ranks
  std::atomic<const runtime::DeviceCore*> core_{nullptr};         // of this rank's device; set by the first call
  StagedThread thread_;
  // The following belong to the thread that enqueues a call; the communicator's mutex orders them.
  CallOrder order_;
  std::vector<StagedStep> steps_;
  bool retires_ = false;  // no other communicator may use the memory
};

}  // namespace slip::comm
