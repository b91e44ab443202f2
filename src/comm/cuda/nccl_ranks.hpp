// NcclRanks: one rank of a communicator whose calls NVIDIA's NCCL runs (SLIP_NCCL). Streams, traces, the race check and
// the detection of failures are Slipstream's; NCCL's kernels move the data.
//
// The results of reductions are NCCL's: the order of the ranks depends on NCCL's algorithm, and an average multiplies
// each float by 1/n before it is added.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/gpu_calls.hpp"
#include "comm/cuda/cuda_driver.hpp"
#include "comm/cuda/cuda_streams.hpp"
#include "comm/cuda/nccl_watch.hpp"
#include "comm/delegate/nccl_connection.hpp"

namespace slip::comm {

class NcclRanks final : public GpuRank {
 public:
  // All ranks call it. Null: Slipstream's own kernels run the calls. Throws if SLIP_NCCL names a library that cannot be
  // used.
  static std::unique_ptr<GpuCalls> meet(transport::Bootstrap& bootstrap, const Device& device, bool deterministic,
                                        Here here);
  ~NcclRanks() override;

  void start(GpuWatch watch) override;
  void stop() noexcept override { watch_.stop(); }
  std::uint64_t start_call(const GpuCall& call, Op& op, runtime::StreamState& stream, Submit& submit) override;
  std::uint64_t start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                               runtime::StreamState& stream, Submit& submit) override;
  void drain() noexcept override { watch_.drain(); }
  std::string engine() const override { return connection_->library().text(); }

 private:
  NcclRanks(transport::Bootstrap& bootstrap, const Device& device) : GpuRank(bootstrap, device) {}
  void connect(Here here);
  const NcclFunctions& nccl() const { return connection_->library().functions; }

  // Memory that NCCL uses instead of the user's: host memory, and the input of an all_to_all in place.
  struct Staged {
    std::byte* user = nullptr;
    std::byte* own = nullptr;
    std::uint64_t bytes = 0;
    bool is_output = false;
    std::byte** place = nullptr;  // where the call keeps the address; set to `own`
  };
  void stage(std::byte*& data, std::uint64_t bytes, bool is_output);
  void allocate_staging();

  void require_call(const GpuCall& asked, Here here) const;
  std::uint64_t enqueue(const NcclWatch::Noted& call, Op& op, runtime::StreamState& stream, Submit& submit,
                        const std::function<NcclResult(NcclComm*, cudaStream_t)>& put);
  void put(const NcclWatch::Noted& call, cudaStream_t stream,
           const std::function<NcclResult(NcclComm*, cudaStream_t)>& body);
  NcclResult put_call(const Call& call, const std::byte* input, std::byte* output, NcclComm* comm, cudaStream_t stream);
  NcclResult put_reduction(const Call& call, const std::byte* input, std::byte* output, NcclComm* comm,
                           cudaStream_t stream);
  NcclResult put_blocks(const Call& call, const std::byte* input, std::byte* output, NcclComm* comm,
                        cudaStream_t stream);
  NcclResult put_messages(std::span<const UserMessage> messages, NcclComm* comm, cudaStream_t stream);

  std::optional<NcclConnection> connection_;
  NcclPage* page_ = nullptr;
  std::byte* barrier_ = nullptr;  // device memory that a barrier reduces
  NcclWatch watch_;

  // The following belong to the thread that enqueues a call; the communicator's mutex orders them.
  std::vector<Staged> staged_;  // of the present call
  StagingBuffers staging_;
};

}  // namespace slip::comm
