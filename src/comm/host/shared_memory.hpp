// SharedMemory: the memory that ranks of one host have allocated together, and how each finds what is another's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "transport/memory/segment.hpp"

namespace slip {

// A position in memory of one rank that its peers can reach.
struct SharedAddress {
  static constexpr std::uint32_t kNowhere = 0;                  // no peer can reach it
  static constexpr std::uint32_t kAddress = ~std::uint32_t{0};  // all ranks are one process: `offset` is the address

  std::uint64_t offset = 0;  // bytes from the start of the segment
  std::uint32_t segment = kNowhere;
};

// What one call of allocate has made: a part for each rank, behind a page that counts who has freed its part.
struct SharedMapping {
  Segment segment;
  std::uint32_t id = 0;
  std::uint32_t ranks = 0;
  std::size_t begin = 0, bytes = 0;  // of this rank's part

  std::atomic<std::uint32_t>& freed() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(segment.data()); }
};

// Mappings by their number, and this rank's parts by their address. Any thread.
class SharedRegistry {
 public:
  void add(const std::shared_ptr<SharedMapping>& mapping);
  void remove(const std::shared_ptr<SharedMapping>& mapping) noexcept;  // this rank has freed its part
  // Those that every rank has freed: no call can name them any more.
  void unmap_freed();
  void clear() noexcept;
  SharedAddress find(const std::byte* data, std::uint64_t bytes) const;
  std::byte* at(const SharedAddress& address, std::uint64_t bytes) const;  // null: there is no such memory

 private:
  using Mapping = std::shared_ptr<SharedMapping>;

  mutable SpinLock lock_;
  std::map<std::uint32_t, Mapping> by_id_;
  std::map<const std::byte*, Mapping> by_address_;  // own parts that are not freed
};

// This rank's part, until it is freed.
class SharedPart {
 public:
  SharedPart(std::shared_ptr<SharedRegistry> registry, std::shared_ptr<SharedMapping> mapping)
      : registry_(std::move(registry)), mapping_(std::move(mapping)) {}
  ~SharedPart() { registry_->remove(mapping_); }
  SharedPart(const SharedPart&) = delete;
  SharedPart& operator=(const SharedPart&) = delete;

  std::byte* data() const { return mapping_->segment.data() + mapping_->begin; }
  std::size_t bytes() const { return mapping_->bytes; }

 private:
  const std::shared_ptr<SharedRegistry> registry_;
  const std::shared_ptr<SharedMapping> mapping_;
};

class SharedMemory {
 public:
  // `direct`: whether this rank wants others at its memory at all.
  SharedMemory(Bootstrap& bootstrap, bool direct);
  ~SharedMemory() { registry_->clear(); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Any memory of one rank is in reach of all.
  bool one_process() const { return one_process_; }
  // All ranks call it, in the same order; each says how much it wants. Null: nothing.
  std::shared_ptr<SharedPart> allocate(std::size_t bytes, const SetupCall& call, Here here);

  // Where others find these bytes of this rank. `hidden`: their pages are protected while no op of this rank runs.
  SharedAddress find(const std::byte* data, std::uint64_t bytes, bool hidden) const;
  // The bytes that another rank has told so.
  std::byte* at(const SharedAddress& address, std::uint64_t bytes) const;

 private:
  Bootstrap& bootstrap_;
  const bool direct_;
  bool one_process_ = true;
  std::uint32_t made_ = 0;
  const std::shared_ptr<SharedRegistry> registry_ = std::make_shared<SharedRegistry>();
};

}  // namespace slip
