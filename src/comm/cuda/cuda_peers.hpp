// PeerMemory: how ranks of several processes reach each other's device memory. A rank publishes an allocation, with its
// CUDA IPC handle, when a call first uses it. The watch thread of each other rank opens the handle and publishes the
// address at which it has mapped the allocation. The owner then posts that address to the reader in CallPost.
// Allocations have an id, so memory that was freed and allocated again at the same address is published anew.
//
// Opening a handle does not wait for running kernels, except while the process loads kernels (see kMapSoonNs in
// cuda_ranks.cpp). Closing a handle always waits for them (measured on an H200). So separate threads close handles.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "comm/cuda/cuda_driver.hpp"
#include "comm/cuda/cuda_kernels.hpp"

namespace slip::comm {

inline constexpr int kMaxPublished = 512;  // allocations of one rank at a time

struct PublishedAllocation {
  enum State : std::uint32_t { kFree, kPublished, kRetired };
  // The state, and in the bits above it how often the entry has been published. A reader that missed an allocation
  // notices that by the number.
  std::atomic<std::uint32_t> version;
  static constexpr std::uint32_t kStateBits = 2, kStateMask = (1 << kStateBits) - 1;
  std::atomic<std::uint32_t> closed;  // number of ranks that do not map the retired allocation any more
  std::uint64_t base;
  cudaIpcMemHandle_t handle;
};

// The allocations that one rank publishes, in memory that all ranks share. REQUIRES: zeroed memory. `mapped`, by
// allocation and reader: the address of the allocation in the reader's process; 0: not mapped.
struct PublishedMemory {
  PublishedAllocation allocations[kMaxPublished];
  std::atomic<std::uint64_t> mapped[kMaxPublished][kMaxGpuRanks];
};
inline constexpr std::uint64_t kNotMappable = 1;  // as a value of `mapped`: the reader could not open the handle

class PeerMemory : base::NoCopy {
 public:
  struct Setup {
    int rank = 0, nranks = 0, gpu = 0;
    std::vector<bool> same_process;  // by rank
  };
  PeerMemory(Setup setup, PublishedMemory* all);
  ~PeerMemory();

  // The addresses at which the readers, which are all ranks, access these bytes of this rank. Publishes the allocation
  // if needed. Only the thread that enqueues the call may call it.
  struct Found {
    const std::uint64_t* bases = nullptr;  // by reader; null: no other process can map this memory
    std::uint64_t offset = 0;
    bool is_pending = false;  // some readers have not mapped the memory yet: their bases are 0
    int unmappable_by = -1;   // the reader that could not open the handle; -1: none
  };
  Found find(const std::byte* data);

  // Opens the allocations that other ranks have published, and closes those that they have retired. Only the watch
  // thread calls it.
  void serve();

 private:
  struct Own {  // an allocation of this rank
    std::uint64_t id = 0;
    int index = -1;                          // in PublishedMemory; -1: it has no handle
    std::uint64_t bases[kMaxGpuRanks] = {};  // by reader; 0: not mapped yet
    bool complete = false;                   // all readers have mapped it
  };
  // What this rank has done with an entry of another rank. `mapped`, `closed`: the numbers of the last publications
  // that it has mapped and closed; 0: none.
  struct Entry {
    void* address = nullptr;  // opened
    std::uint32_t mapped = 0, closed = 0;
  };
  int publish(const Allocation& allocation);
  void retire(int index);
  void retire_freed();
  void open(int owner, int index, Entry& entry);
  void close(PublishedAllocation& one, Entry& entry);

  const Setup setup_;
  PublishedMemory* const all_;  // by owner
  bool one_process_ = true;
  const std::uint64_t zero_bases_[kMaxGpuRanks] = {};  // of ranks in one process: the offset is the address itself
  std::map<std::uint64_t, Own> by_base_;               // by the address of the allocation
  std::vector<std::vector<Entry>> entries_;            // by owner and index; only the watch thread uses it
  struct Closer {                                      // a thread that closes one allocation
    base::Thread thread;
    std::atomic<bool> ended{false};
  };
  std::vector<std::unique_ptr<Closer>> closers_;
};

}  // namespace slip::comm
