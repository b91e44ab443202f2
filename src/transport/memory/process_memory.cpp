#include "transport/memory/process_memory.hpp"

#include <sys/uio.h>

namespace slip {

bool read_process(std::int32_t pid, std::uint64_t address, void* to, std::size_t bytes) noexcept {
  auto* place = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec here{place, bytes}, there{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got <= 0) return false;
    place += got;
    address += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace slip
