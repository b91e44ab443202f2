// SlicedMessages: sends and receives of processes that share a GPU without MPS. Their kernels, and their copies inside
// the GPU, are time-sliced; each change of the process takes 0.15 ms (measured on an H200). Stream memory operations
// need no time slice.
//
// Of two ranks, the lower one is the worker: its kernel copies the messages of both directions. The other rank offers
// its buffer and waits, by memory operations alone. So only one of the two processes runs kernels.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "comm/cuda/cuda_layout.hpp"
#include "comm/cuda/cuda_watch.hpp"

namespace slip::comm {

class SlicedMessages {
 public:
  struct Setup {
    int rank = 0, nranks = 0, gpu = 0;
    const SharedPages* shared = nullptr;
    std::vector<RankControl*> controls;  // of all ranks, as addresses of this process
  };
  explicit SlicedMessages(Setup setup);

  // Whether a kernel of this rank copies a message to (`sends`) or from the other rank.
  bool copies(int other, bool sends) const {
    return other > setup_.rank || (other == setup_.rank && !sends);  // a message to itself: the receive copies
  }

  // Enqueues at most one message in each direction with each rank: first all offers, then the copies, then the waits
  // for the workers. So no two ranks wait for each other. `launch_kernel` copies.
  using LaunchKernel = std::function<void(std::span<const DeviceMessage>)>;
  void put_round(std::span<const DeviceMessage> round, cudaStream_t stream, const LaunchKernel& launch_kernel);

 private:
  const MessageBox& box(const DeviceMessage& message) const;

  const Setup setup_;
  std::vector<std::uint32_t> copied_;  // messages with each rank so far
};

}  // namespace slip::comm
