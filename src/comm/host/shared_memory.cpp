#include "comm/host/shared_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "slip/shared_buffer.hpp"

namespace slip {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
std::size_t physical_memory() { return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

}  // namespace

// Swaps, so that `other` destroys the old buffer before the part that holds its memory.
SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
  std::swap(part_, other.part_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

}  // namespace slip

namespace slip::comm {

void SharedRegistry::add(const std::shared_ptr<SharedMapping>& mapping) {
  const base::LockGuard lock(lock_);
  by_id_[mapping->id] = mapping;
  if (mapping->bytes > 0) by_address_[mapping->segment.data() + mapping->begin] = mapping;
  else mapping->freed().fetch_add(1, std::memory_order_release);  // nothing to free: remove() is never called
}

void SharedRegistry::remove(const std::shared_ptr<SharedMapping>& mapping) noexcept {
  {
    const base::LockGuard lock(lock_);
    by_address_.erase(mapping->segment.data() + mapping->begin);
  }
  mapping->segment.drop(mapping->begin, whole_pages(mapping->bytes));
  mapping->freed().fetch_add(1, std::memory_order_release);  // release: this rank's accesses come before the count
  unmap_freed();
}

void SharedRegistry::unmap_freed() {
  std::vector<Mapping> gone;  // destroyed after the lock is released
  const base::LockGuard lock(lock_);
  std::erase_if(by_id_, [&](const auto& entry) {
    if (entry.second->freed().load(std::memory_order_acquire) < entry.second->ranks) return false;
    gone.push_back(entry.second);
    return true;
  });
}

void SharedRegistry::clear() noexcept {
  std::map<std::uint32_t, Mapping> gone;
  const base::LockGuard lock(lock_);
  gone.swap(by_id_);
  by_address_.clear();
}

SharedAddress SharedRegistry::find(const std::byte* data, std::uint64_t bytes) const {
  const base::LockGuard lock(lock_);
  auto after = by_address_.upper_bound(data);
  if (after == by_address_.begin()) return {};
  const SharedMapping& mapping = *(--after)->second;
  const auto offset = static_cast<std::uint64_t>(data - mapping.segment.data());
  if (offset + bytes > mapping.begin + mapping.bytes) return {};
  return {offset, mapping.id};
}

std::byte* SharedRegistry::at(const SharedAddress& address, std::uint64_t bytes) const {
  const base::LockGuard lock(lock_);
  const auto found = by_id_.find(address.segment);
  if (found == by_id_.end()) return nullptr;
  const transport::Segment& segment = found->second->segment;
  if (address.offset > segment.bytes() || bytes > segment.bytes() - address.offset) return nullptr;
  return segment.data() + address.offset;
}

SharedMemory::SharedMemory(transport::Bootstrap& bootstrap, bool direct) : bootstrap_(bootstrap), direct_(direct) {
  for (const transport::Placement& other : bootstrap.placements())
    one_process_ = one_process_ && transport::same_process(other, bootstrap.placements().front());
}

void SharedMemory::probe_reads(bool wanted) {
  if (one_process_) return;
  struct Probe {
    std::uint64_t address = 0, value = 0;
    std::uint8_t wanted = 0;
    std::array<std::uint8_t, 7> unused{};
  };
  // The value distinguishes this process from a process with the same pid in another container.
  const auto value = static_cast<std::uint64_t>(base::now_ns()) ^ (static_cast<std::uint64_t>(::getpid()) << 40);
  volatile std::uint64_t own = value;
  const std::vector<Probe> all = bootstrap_.all_gather(
      Probe{reinterpret_cast<std::uintptr_t>(&own), value, static_cast<std::uint8_t>(wanted && direct_ ? 1 : 0), {}});
  bool reads = true;
  for (const Probe& probe : all) reads = reads && probe.wanted == 1;
  if (!reads) return;
  for (int rank = 0; reads && rank < bootstrap_.nranks(); ++rank) {
    const Probe& probe = all[static_cast<std::size_t>(rank)];
    std::uint64_t found = 0;
    reads = transport::read_process(process_of(rank), probe.address, &found, sizeof(found)) && found == probe.value;
  }
  // The other ranks read `own` until this all-gather returns.
  const std::vector<std::uint8_t> can = bootstrap_.all_gather(static_cast<std::uint8_t>(reads ? 1 : 0));
  can_read_ = std::ranges::all_of(can, [](std::uint8_t one) { return one == 1; });
}

std::shared_ptr<SharedPart> SharedMemory::allocate(std::size_t bytes, const transport::SetupCall& call, Here here) {
  const std::vector<std::uint64_t> wanted = bootstrap_.all_gather(std::uint64_t{bytes}, call);
  const std::size_t memory = physical_memory();
  std::size_t whole = page_bytes(), own = 0;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    if (static_cast<int>(rank) == bootstrap_.rank()) own = whole;
    const std::size_t part = wanted[rank] < memory ? whole_pages(wanted[rank]) : memory;
    whole += part;
    if (whole > memory)  // Linux may overcommit: it would grant the memory and kill a rank that accesses it
      base::fail(ErrorCode::kOutOfMemory, here,
                 "together the ranks ask for more shared memory than the {} bytes of memory of the host: rank {}, "
                 "which asks for {} bytes, is the first that exceeds it",
                 memory, rank, wanted[rank]);
  }
  if (whole == page_bytes()) return nullptr;
  std::vector<int> ranks(wanted.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto mapping = std::make_shared<SharedMapping>();
  mapping->segment = transport::Segment::share(bootstrap_, ranks, whole, call);
  mapping->id = ++allocations_;
  mapping->ranks = static_cast<std::uint32_t>(wanted.size());
  mapping->begin = own;
  mapping->bytes = bytes;
  registry_->unmap_freed();
  std::string why;  // empty: this rank got its memory
  try {
    mapping->segment.commit(own, whole_pages(bytes));
  } catch (const Error& error) {
    why = error.what();
  }
  require_memory_of_all(bootstrap_, call, wanted, why, "shared memory", here);
  registry_->add(mapping);
  if (bytes == 0) return nullptr;
  return std::make_shared<SharedPart>(registry_, mapping);
}

SharedAddress SharedMemory::find(const std::byte* data, std::uint64_t bytes, bool hidden) const {
  if (!direct_) return {};
  if (!one_process_) return registry_->find(data, bytes);
  return hidden ? SharedAddress{} : SharedAddress{reinterpret_cast<std::uintptr_t>(data), SharedAddress::kAddress};
}

void require_memory_of_all(transport::Bootstrap& bootstrap, const transport::SetupCall& call,
                           std::span<const std::uint64_t> wanted, const std::string& why, const char* kind, Here here) {
  const std::vector<std::uint8_t> all = bootstrap.all_gather(static_cast<std::uint8_t>(why.empty() ? 1 : 0), call);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == 1) continue;
    const bool is_own = static_cast<int>(rank) == bootstrap.rank();
    base::fail(ErrorCode::kOutOfMemory, here, "rank {} could not get {} bytes of {}{}{}", rank, wanted[rank], kind,
               is_own ? ": " : "", is_own ? why : "");
  }
}

}  // namespace slip::comm
