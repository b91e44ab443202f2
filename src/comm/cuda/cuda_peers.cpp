#include "comm/cuda/cuda_peers.hpp"

#include <utility>

#include "backend/cuda/check.hpp"
#include "base/fail.hpp"

namespace slip::comm {

PeerMemory::PeerMemory(Setup setup, PublishedMemory* all) : setup_(std::move(setup)), all_(all) {
  for (const bool same : setup_.same_process) one_process_ = one_process_ && same;
  entries_.assign(static_cast<std::size_t>(setup_.nranks), std::vector<Entry>(kMaxPublished));
}

PeerMemory::~PeerMemory() {
  for (const auto& closer : closers_) closer->thread.join();
  for (const auto& of_owner : entries_) {
    for (const Entry& entry : of_owner) {
      if (entry.address) static_cast<void>(cudaIpcCloseMemHandle(entry.address));
    }
  }
  static_cast<void>(cudaGetLastError());
}

int PeerMemory::publish(const Allocation& allocation) {
  PublishedMemory& own = all_[setup_.rank];
  const DeviceScope scope(setup_.gpu);
  for (int index = 0; index < kMaxPublished; ++index) {
    PublishedAllocation& one = own.allocations[index];
    const std::uint32_t version = one.version.load(std::memory_order_relaxed);  // relaxed: only this rank writes it
    const std::uint32_t state = version & PublishedAllocation::kStateMask;
    const auto readers = static_cast<std::uint32_t>(setup_.nranks - 1);
    // acquire: the readers have closed the allocation that was published here before.
    if (state == PublishedAllocation::kPublished ||
        (state == PublishedAllocation::kRetired && one.closed.load(std::memory_order_acquire) < readers))
      continue;
    for (int reader = 0; reader < setup_.nranks; ++reader)
      own.mapped[index][reader].store(0, std::memory_order_relaxed);  // relaxed: published by the release below
    one.closed.store(0, std::memory_order_relaxed);
    one.base = allocation.base;
    backend::check(cudaIpcGetMemHandle(&one.handle, reinterpret_cast<void*>(allocation.base)), "cudaIpcGetMemHandle",
                   setup_.gpu);
    const std::uint32_t number = (version >> PublishedAllocation::kStateBits) + 1;
    // release: a reader sees handle and base.
    one.version.store(number << PublishedAllocation::kStateBits | PublishedAllocation::kPublished,
                      std::memory_order_release);
    return index;
  }
  base::fail(ErrorCode::kOutOfMemory, {},
             "rank {} uses more than {} device allocations in collectives at a time: use fewer, larger buffers",
             setup_.rank, kMaxPublished);
}

void PeerMemory::retire(int index) {
  if (index < 0) return;
  std::atomic<std::uint32_t>& version = all_[setup_.rank].allocations[index].version;
  const std::uint32_t published = version.load(std::memory_order_relaxed);  // relaxed: only this rank writes it
  version.store((published & ~PublishedAllocation::kStateMask) | PublishedAllocation::kRetired,
                std::memory_order_release);
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

void PeerMemory::open(int owner, int index, Entry& entry) {
  const PublishedAllocation& one = all_[owner].allocations[index];
  if (cudaIpcOpenMemHandle(&entry.address, one.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    entry.address = nullptr;
    static_cast<void>(cudaGetLastError());
  }
  // release: the owner posts the address only after the mapping exists.
  all_[owner].mapped[index][setup_.rank].store(
      entry.address ? reinterpret_cast<std::uint64_t>(entry.address) : kNotMappable, std::memory_order_release);
}

// Closing may wait for kernels, so a thread of its own does it. If this rank has not opened the allocation, for example
// because its owner freed it at once, nothing is to be closed.
void PeerMemory::close(PublishedAllocation& one, Entry& entry) {
  if (!entry.address) {
    one.closed.fetch_add(1, std::memory_order_release);  // the owner may use the entry again
    return;
  }
  std::erase_if(closers_, [](const auto& closer) {
    if (!closer->ended.load(std::memory_order_relaxed)) return false;  // relaxed: join() orders the rest
    closer->thread.join();
    return true;
  });
  Closer& closer = *closers_.emplace_back(std::make_unique<Closer>());
  closer.thread.start("slip-ipc-close",
                      [address = std::exchange(entry.address, nullptr), gpu = setup_.gpu, &one, &closer] {
                        static_cast<void>(cudaSetDevice(gpu));
                        static_cast<void>(cudaIpcCloseMemHandle(address));
                        one.closed.fetch_add(1, std::memory_order_release);  // as above
                        closer.ended.store(true, std::memory_order_relaxed);
                      });
}

void PeerMemory::serve() {
  if (one_process_) return;
  for (int owner = 0; owner < setup_.nranks; ++owner) {
    if (owner == setup_.rank) continue;
    const bool here = setup_.same_process[static_cast<std::size_t>(owner)];
    for (int index = 0; index < kMaxPublished; ++index) {
      PublishedAllocation& one = all_[owner].allocations[index];
      Entry& entry = entries_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(index)];
      const std::uint32_t version =
          one.version.load(std::memory_order_acquire);  // acquire: handle and base are visible
      const std::uint32_t state = version & PublishedAllocation::kStateMask;
      const std::uint32_t number = version >> PublishedAllocation::kStateBits;
      if (state == PublishedAllocation::kFree) break;  // entries are taken in order
      if (state == PublishedAllocation::kPublished && entry.mapped != number) {
        entry.mapped = number;
        if (here) all_[owner].mapped[index][setup_.rank].store(one.base, std::memory_order_release);
        else open(owner, index, entry);
      } else if (state == PublishedAllocation::kRetired && entry.closed != number) {
        entry.closed = number;
        close(one, entry);
      }
    }
  }
}

}  // namespace slip::comm
