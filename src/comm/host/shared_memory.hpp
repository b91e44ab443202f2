// SharedMemory: buffers that the ranks of one host allocate together (Communicator::allocate), so that each rank can
// map the others' parts. PeerBuffers uses it to find a peer's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/sync.hpp"
#include "transport/memory/segment.hpp"

namespace slip::comm {

// A position in memory of one rank that its peers can reach.
struct SharedAddress {
  static constexpr std::uint32_t kNowhere = 0;                  // no peer can reach it
  static constexpr std::uint32_t kAddress = ~std::uint32_t{0};  // all ranks are one process: `offset` is the address
  static constexpr std::uint32_t kPrivate = kAddress - 1;  // `offset` is an address of the rank; the kernel reads there

  std::uint64_t offset = 0;  // bytes from the start of the segment
  std::uint32_t segment = kNowhere;
};

// The segment of one allocation: a page with the count of ranks that have freed their part, then a part for each rank.
struct SharedMapping {
  transport::Segment segment;
  std::uint32_t id = 0;
  std::uint32_t ranks = 0;
  std::size_t begin = 0, bytes = 0;  // of this rank's part

  std::atomic<std::uint32_t>& freed() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(segment.data()); }
};

// The mappings by id, and this rank's parts by address. Any thread may use it at any time.
class SharedRegistry {
 public:
  void add(const std::shared_ptr<SharedMapping>& mapping);
  void remove(const std::shared_ptr<SharedMapping>& mapping) noexcept;  // this rank frees its part
  // Unmaps the segments that every rank has freed: no call can name them any more.
  void unmap_freed();
  void clear() noexcept;
  SharedAddress find(const std::byte* data, std::uint64_t bytes) const;
  std::byte* at(const SharedAddress& address, std::uint64_t bytes) const;  // null: the address is not valid

 private:
  using Mapping = std::shared_ptr<SharedMapping>;

  mutable base::SpinLock lock_;
  std::map<std::uint32_t, Mapping> by_id_ SLIP_GUARDED_BY(lock_);
  std::map<const std::byte*, Mapping> by_address_ SLIP_GUARDED_BY(lock_);  // this rank's parts that are not freed
};

// Owns this rank's part of a mapping; the destructor frees the part.
class SharedPart : base::NoCopy {
 public:
  SharedPart(std::shared_ptr<SharedRegistry> registry, std::shared_ptr<SharedMapping> mapping)
      : registry_(std::move(registry)), mapping_(std::move(mapping)) {}
  ~SharedPart() { registry_->remove(mapping_); }

  std::byte* data() const { return mapping_->segment.data() + mapping_->begin; }

 private:
  const std::shared_ptr<SharedRegistry> registry_;
  const std::shared_ptr<SharedMapping> mapping_;
};

class SharedMemory : base::NoCopy {
 public:
  // `direct`: whether other ranks may access this rank's memory at all.
  SharedMemory(transport::Bootstrap& bootstrap, bool direct);
  ~SharedMemory() { registry_->clear(); }

  // All ranks are threads of one process, so each can reach any memory of the others.
  bool one_process() const { return one_process_; }
  // Finds out whether the kernel lets each rank read the memory of all others. All ranks call it together; `wanted`:
  // this rank allows it.
  void probe_reads(bool wanted);
  bool can_read() const { return can_read_; }  // the same on all ranks
  std::int32_t process_of(int rank) const { return bootstrap_.placements()[static_cast<std::size_t>(rank)].pid; }
  // All ranks call it, in the same order, each with the size of its own part. Null: this rank asked for 0 bytes.
  std::shared_ptr<SharedPart> allocate(std::size_t bytes, const transport::SetupCall& call, Here here);

  // Where peers find these bytes of this rank. `hidden`: the pages are protected while no op of this rank runs, so
  // other threads of this process cannot access them.
  SharedAddress find(const std::byte* data, std::uint64_t bytes, bool hidden) const;
  // The address in this process of the bytes that another rank published. Null: there are no such bytes.
  std::byte* at(const SharedAddress& address, std::uint64_t bytes) const {
    if (address.segment == SharedAddress::kAddress) return reinterpret_cast<std::byte*>(address.offset);
    return registry_->at(address, bytes);
  }

 private:
  transport::Bootstrap& bootstrap_;
  const bool direct_;
  bool one_process_ = true;
  bool can_read_ = false;
  std::uint32_t allocations_ = 0;
  const std::shared_ptr<SharedRegistry> registry_ = std::make_shared<SharedRegistry>();
};

// All ranks call it after each has tried to get memory; `wanted`: the bytes that each rank asked for. If one rank got
// none, all ranks throw kOutOfMemory. `why`: the reason of this rank; empty: it got its memory. `kind`: for the error.
void require_memory_of_all(transport::Bootstrap& bootstrap, const transport::SetupCall& call,
                           std::span<const std::uint64_t> wanted, const std::string& why, const char* kind, Here here);

}  // namespace slip::comm
