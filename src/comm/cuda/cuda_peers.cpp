#include "comm/cuda/cuda_peers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/check.hpp"

namespace slip::comm {

PeerMemory::PeerMemory(Setup setup, PublishedMemory* all) : setup_(std::move(setup)), all_(all) {
  for (int rank = 0; rank < setup_.nranks; ++rank)
    one_process_ = one_process_ && setup_.same_process[static_cast<std::size_t>(rank)];
  opened_.resize(static_cast<std::size_t>(setup_.nranks));
  for (auto& of_owner : opened_) of_owner.resize(kMaxPublished);
}

PeerMemory::~PeerMemory() {
  for (const auto& closer : closers_) closer->join();
  for (const auto& of_owner : opened_) {
    for (void* const address : of_owner) {
      if (address) static_cast<void>(cudaIpcCloseMemHandle(address));
    }
  }
  static_cast<void>(cudaGetLastError());
}

int PeerMemory::publish(const Allocation& allocation) {
  PublishedMemory& own = all_[setup_.rank];
  const DeviceScope scope(setup_.gpu);
  for (int index = 0; index < kMaxPublished; ++index) {
    PublishedAllocation& one = own.allocations[index];
    // acquire: the readers have closed the allocation that was published here before.
    const std::uint32_t state = one.state.load(std::memory_order_acquire);
    const auto readers = static_cast<std::uint32_t>(setup_.nranks - 1);
    if (state == PublishedAllocation::kPublished ||
        (state == PublishedAllocation::kRetired && one.closed.load(std::memory_order_acquire) < readers))
      continue;
    for (int reader = 0; reader < setup_.nranks; ++reader)
      own.mapped[index][reader].store(0, std::memory_order_relaxed);  // relaxed: published by the release below
    one.closed.store(0, std::memory_order_relaxed);
    one.base = allocation.base;
    backend::check(cudaIpcGetMemHandle(&one.handle, reinterpret_cast<void*>(allocation.base)), "cudaIpcGetMemHandle",
                   setup_.gpu);
    one.state.store(PublishedAllocation::kPublished, std::memory_order_release);  // a reader sees handle and base
    return index;
  }
  throw Error(ErrorCode::kOutOfMemory,
              fmt::format("rank {} uses more than {} device allocations in collectives at a time: use fewer, larger "
                          "buffers",
                          setup_.rank, kMaxPublished),
              {});
}

void PeerMemory::retire(int index) {
  if (index >= 0)
    all_[setup_.rank].allocations[index].state.store(PublishedAllocation::kRetired, std::memory_order_release);
}

// Retires the allocations that the program has freed, so that the other processes release the memory.
void PeerMemory::retire_freed() {
  std::erase_if(by_base_, [this](const auto& entry) {
    std::uint64_t id = 0;
    try {
      id = find_allocation(reinterpret_cast<const void*>(entry.first), setup_.gpu).id;
    } catch (const Error&) {  // no allocation has this address any more
    }
    if (id == entry.second.id) return false;
    retire(entry.second.index);
    return true;
  });
}

PeerMemory::Found PeerMemory::find(const std::byte* data) {
  const auto address = reinterpret_cast<std::uint64_t>(data);
  if (one_process_ || data == nullptr) return {.bases = zero_bases_, .offset = address};
  const Allocation allocation = find_allocation(data, setup_.gpu);
  auto found = by_base_.find(allocation.base);
  if (found != by_base_.end() && found->second.id != allocation.id) {  // freed, and the address used again
    retire(found->second.index);
    by_base_.erase(found);
    found = by_base_.end();
  }
  if (found == by_base_.end()) {
    retire_freed();
    found =
        by_base_.emplace(allocation.base, Own{allocation.id, allocation.has_handle ? publish(allocation) : -1}).first;
  }
  Own& own = found->second;
  if (own.index < 0) return {};
  Found result{.bases = own.bases, .offset = address - allocation.base};
  if (own.complete) return result;
  for (int reader = 0; reader < setup_.nranks; ++reader) {
    const bool here = setup_.same_process[static_cast<std::size_t>(reader)];
    // acquire: the reader has mapped it.
    own.bases[reader] =
        here ? allocation.base : all_[setup_.rank].mapped[own.index][reader].load(std::memory_order_acquire);
    if (own.bases[reader] == kNotMappable) result.unmappable_by = reader;
    if (own.bases[reader] == 0) result.is_pending = true;
  }
  own.complete = !result.is_pending && result.unmappable_by < 0;
  return result;
}

void PeerMemory::open(int owner, int index) {
  void*& mine = opened_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(index)];
  const PublishedAllocation& one = all_[owner].allocations[index];
  if (cudaIpcOpenMemHandle(&mine, one.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    mine = nullptr;
    static_cast<void>(cudaGetLastError());
  }
  // release: the owner posts the address only after the mapping exists.
  all_[owner].mapped[index][setup_.rank].store(mine ? reinterpret_cast<std::uint64_t>(mine) : kNotMappable,
                                               std::memory_order_release);
}

void PeerMemory::close(int owner, int index) {
  void*& mine = opened_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(index)];
  PublishedAllocation& one = all_[owner].allocations[index];
  all_[owner].mapped[index][setup_.rank].store(0, std::memory_order_relaxed);  // relaxed: `closed` publishes it
  closers_.push_back(std::make_unique<base::Thread>());
  closers_.back()->start("slip-ipc-close", [address = mine, gpu = setup_.gpu, &one] {
    static_cast<void>(cudaSetDevice(gpu));
    if (address) static_cast<void>(cudaIpcCloseMemHandle(address));
    one.closed.fetch_add(1, std::memory_order_release);  // the owner may use the entry again
  });
  mine = nullptr;
}

void PeerMemory::serve() {
  if (one_process_) return;
  for (int owner = 0; owner < setup_.nranks; ++owner) {
    if (owner == setup_.rank) continue;
    const bool here = setup_.same_process[static_cast<std::size_t>(owner)];
    for (int index = 0; index < kMaxPublished; ++index) {
      PublishedAllocation& one = all_[owner].allocations[index];
      const std::uint32_t state = one.state.load(std::memory_order_acquire);  // acquire: handle and base are visible
      if (state == PublishedAllocation::kFree) break;                         // entries are taken in order
      const std::uint64_t mapped = all_[owner].mapped[index][setup_.rank].load(std::memory_order_relaxed);
      if (state == PublishedAllocation::kPublished && mapped == 0) {
        if (here) all_[owner].mapped[index][setup_.rank].store(one.base, std::memory_order_release);
        else open(owner, index);
      } else if (state == PublishedAllocation::kRetired && mapped != 0) {
        close(owner, index);
      }
    }
  }
}

}  // namespace slip::comm
