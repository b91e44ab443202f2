// SharedBuffer: memory from Communicator::allocate that the other ranks of the host can access. A collective whose
// buffers are all accessible reads and writes them in place and stages nothing.
//
// It is pinned memory of the communicator's device. Freeing it waits for this device, like Buffer, but not for other
// ranks: once this rank's calls have ended, no other rank accesses it. The memory returns to the system at once. The
// address range is unmapped when all ranks have freed their parts or the communicator ends. A SharedBuffer may outlive
// the communicator; for another communicator it is ordinary memory.
#pragma once

#include <memory>

#include "slip/buffer.hpp"

namespace slip::comm {
class SharedPart;
}  // namespace slip::comm

namespace slip {

class SharedBuffer {
 public:
  SharedBuffer() = default;  // of 0 bytes
  SharedBuffer(SharedBuffer&&) noexcept = default;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;

  std::size_t bytes() const { return buffer_.bytes(); }
  Range range() const { return buffer_.range(); }
  operator Range() const { return buffer_.range(); }  // NOLINT(google-explicit-constructor): as Buffer
  Range slice(std::size_t offset, std::size_t bytes) const { return buffer_.slice(offset, bytes); }
  Buffer& buffer() { return buffer_; }
  const Buffer& buffer() const { return buffer_; }

 private:
  friend class Communicator;
  std::shared_ptr<comm::SharedPart> part_;  // declared first: it must outlive buffer_. Null: buffer_ owns its memory
  Buffer buffer_;
};

}  // namespace slip
