#include "backend/sim/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/fail.hpp"
#include "slip/error.hpp"

namespace slip::sim {
namespace {

// Small buffers come from the heap, because Linux limits a process to about 65,000 mappings (vm.max_map_count).
constexpr std::size_t kSmall = std::size_t{64} << 10;
constexpr std::size_t kAlignment = 64;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::size_t page_bytes() {
  static const auto kBytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

}  // namespace

void* map_memory(std::size_t bytes, bool untouched) {
  if (bytes <= kSmall) {
    void* data = std::aligned_alloc(kAlignment, rounded(bytes, kAlignment));
    if (!data) base::fail(Code::kOutOfMemory, {}, "the host has no {} bytes", bytes);
    // Zeroed like fresh pages: a program that reads uninitialised memory still gives the same result in each run.
    std::memset(data, 0, bytes);
    return data;
  }
  const int access = untouched ? PROT_NONE : PROT_READ | PROT_WRITE;
  const std::size_t whole = bytes < SIZE_MAX / 2 ? rounded(bytes, page_bytes()) : bytes;
  void* data = mmap(nullptr, whole, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) base::fail(Code::kOutOfMemory, {}, "the host has no address space for {} bytes", bytes);
  return data;
}

void unmap_memory(void* data, std::size_t bytes) noexcept {
  if (bytes <= kSmall) std::free(data);
  else munmap(data, rounded(bytes, page_bytes()));
}

void make_accessible(void* flag) {
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(flag) / page_bytes() * page_bytes();
  mprotect(reinterpret_cast<void*>(page), page_bytes(), PROT_READ | PROT_WRITE);
}

}  // namespace slip::sim
