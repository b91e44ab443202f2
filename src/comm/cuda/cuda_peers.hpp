// PeerMemory: how ranks of several processes reach each other's device memory. A rank publishes an allocation, with its
// CUDA IPC handle, when a call first uses it. The watch thread of each other rank opens the handle and publishes the
// address at which it has mapped the allocation. The owner then posts that address. Allocations are known by their id,
// so memory that was freed and allocated again at the same address is published anew.
//
// Opening a handle does not wait for running kernels; closing one does (measured on an H200). So handles are closed by
// separate threads.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "comm/cuda/cuda_driver.hpp"
#include "comm/cuda/cuda_kernels.hpp"

namespace slip::comm {

inline constexpr int kMaxPublished = 512;  // allocations of one rank at a time

struct PublishedAllocation {
  enum State : std::uint32_t { kFree, kPublished, kRetired };
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> closed;  // ranks that no longer map it
  std::uint64_t base;
  cudaIpcMemHandle_t handle;
};

// In memory that all ranks share.
struct PublishedMemory {
  // REQUIRES: zeroed memory. `mapped` of an owner and a reader: where the reader has mapped it; 0: not yet.
  PublishedAllocation allocations[kMaxPublished];
  std::atomic<std::uint64_t> mapped[kMaxPublished][kMaxGpuRanks];
};
inline constexpr std::uint64_t kNotMappable = 1;  // as a value of `mapped`: the reader could not open the handle

class PeerMemory {
 public:
  struct Setup {
    int rank = 0, nranks = 0, gpu = 0;
    std::vector<bool> same_process;  // by rank
  };
  PeerMemory(Setup setup, PublishedMemory* all);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // The addresses by which the readers reach these bytes of this rank. The caller is the thread that enqueues the call.
  struct Found {
    const std::uint64_t* bases = nullptr;  // by reader; null: no other process can map this memory
    std::uint64_t offset = 0;
    bool is_pending = false;  // some readers have not mapped the memory yet: their bases are 0
    int unmappable_by = -1;   // this rank could not open the handle
  };
  Found find(const std::byte* data);

  // Opens the allocations that other ranks have published, and closes those that they have retired. Only the watch
  // thread calls it.
  void serve();

 private:
  struct Own {
    std::uint64_t id = 0;
    int index = -1;  // in PublishedMemory; -1: it has no handle
    std::uint64_t bases[kMaxGpuRanks] = {};
    bool complete = false;
  };
  int publish(const Allocation& allocation);
  void retire(int index);
  void retire_freed();
  void open(int owner, int index);
  void close(int owner, int index);

  const Setup setup_;
  PublishedMemory* const all_;  // by owner
  bool one_process_ = true;
  std::uint64_t own_bases_[kMaxGpuRanks] = {};
  std::map<std::uint64_t, Own> by_base_;
  std::vector<std::vector<void*>> opened_;  // by owner and index; null: not opened; only the watch thread uses it
  std::vector<std::unique_ptr<base::Thread>> closers_;
};

}  // namespace slip::comm
