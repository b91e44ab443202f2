// SlipGroup: a torch.distributed process group of cpu tensors on a slip::Communicator.
//
// Each group has a cpu device, one communicator and one stream for collectives. A call enqueues its ops and returns a
// c10d::Work; works complete in the order of the calls. Messages between two ranks use their own channels
// (channel.hpp).
//
// Thread rule: any thread may call any function. All ranks must make the same calls in the same order.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "channel.hpp"
#include "slip/communicator.hpp"
#include "work_stream.hpp"

namespace slip::distributed {

class SlipGroup final : public TorchGroup {
 public:
  // Returns when all ranks have joined.
  SlipGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout);
  ~SlipGroup() override;

  const std::string getBackendName() const override { return "slip"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
#endif
  void setSequenceNumberForGroup() override {}  // it begins with 0 on all ranks
  std::uint64_t getSequenceNumberForGroup() override;

 private:
  WorkPtr start(SlipWork::Call call, std::vector<Staged> staged, const WorkStream::Enqueue& enqueue);
  WorkPtr gather_parts(std::vector<Staged> outputs, std::vector<Staged> inputs, SlipWork::Call call);
  WorkPtr reduce_parts(std::vector<Staged> outputs, std::vector<Staged> inputs, const c10d::ReduceOp& op,
                       SlipWork::Call call);
  WorkPtr message(const Tensors& tensors, int peer, int tag, bool out);
  int require_root(std::int64_t root, const char* call) const;
  Range range(const Staged& memory) const { return memory_.range(memory.memory); }

  const c10::intrusive_ptr<c10d::Store> store_;
  const Milliseconds timeout_;
  const HostMemory memory_;
  WorkStream works_;
  std::optional<Communicator> comm_;     // destroyed before works_, which has the tensors of unfinished calls
  std::atomic<std::uint64_t> calls_{0};  // the number of collectives so far
  std::mutex channels_mutex_;            // guards channels_
  std::map<std::pair<int, int>, std::shared_ptr<Channel>> channels_;  // by sender and receiver
};

}  // namespace slip::distributed
