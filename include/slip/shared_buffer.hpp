// SharedBuffer: memory from Communicator::allocate, which the other ranks of the host reach, too. Collectives whose
// buffers can all be reached read and write them where they lie and stage nothing.
//
// It is pinned memory of the communicator's device. Freeing it waits for the device, as with Buffer, and for nobody
// else: no call of another rank is at it any more when this rank's calls have ended. Its memory goes back to the system
// at once, the addresses when all ranks have freed theirs or the communicator ends. It may outlive the communicator; to
// another communicator it is like any other memory.
#pragma once

#include <memory>

#include "slip/buffer.hpp"

namespace slip {

class SharedPart;

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
  std::shared_ptr<SharedPart> part_;  // first: it must outlive the buffer. Null: the buffer has its own memory
  Buffer buffer_;
};

}  // namespace slip
