// Registrations: the memory that one connection has registered with its network. It stays registered, so that later
// operations on the same bytes need not register them again. A registration ends when its memory is freed, because the
// network would otherwise access the old pages for later memory with the same addresses.
//
// The caller ensures that one thread at a time uses the object and its connection.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "transport/net/net.hpp"

namespace slip::transport {

class Registrations : base::NoCopy {
 public:
  explicit Registrations(NetConnection& connection) : connection_(connection) {}

  // Returns registered memory that contains the bytes, for the operation with this number. Operations below `done` are
  // done. Null: there are no bytes.
  const NetMemory* find(std::span<std::byte> bytes, std::uint64_t operation, std::uint64_t done);
  // These bytes are about to be freed. A registration that an operation still uses ends after this operation.
  void end(std::span<const std::byte> bytes, std::uint64_t done);

 private:
  struct Registered {
    std::unique_ptr<NetMemory> memory;
    std::uint64_t last_used = 0;  // number of the last operation that used it
    bool ended = false;           // the memory was freed while an operation used it
  };

  NetConnection& connection_;
  std::vector<Registered> all_;
};

}  // namespace slip::transport
