// Buffer: owned memory of a device or of the host. Ops refer to parts of it by Range.
//
// Freeing ordinary memory first waits for the work of its device, like cudaFree. Memory from Stream::alloc is freed in
// stream order and waits for nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "slip/error.hpp"
#include "slip/name.hpp"
#include "slip/range.hpp"

namespace slip::runtime {
struct DeviceCore;
}  // namespace slip::runtime

namespace slip {

enum class MemoryKind : unsigned char {
  kDevice,    // device memory: the host cannot access it
  kPinned,    // page-locked host memory: copies are asynchronous
  kPageable,  // ordinary host memory: copies may block the host (rule 38 in docs/semantics.md)
};

const char* memory_kind_name(MemoryKind kind);

// The host's access to a range, from construction to destruction. The race checker records both ends.
class HostAccess {
 public:
  HostAccess(Range range, bool writes, Here here);
  ~HostAccess();
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

 protected:
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return range_.bytes; }

 private:
  Range range_;
  std::byte* data_;
  bool writes_;
  Here here_;
};

// A HostAccess whose bytes the host sees as an array of T. A const T gives read access, any other T write access.
template <class T>
class HostView : public HostAccess {
 public:
  HostView(Range range, Here here) : HostAccess(range, !std::is_const_v<T>, here) {}
  std::span<T> span() const { return {reinterpret_cast<T*>(data()), bytes() / sizeof(T)}; }
  T* begin() const { return span().data(); }
  T* end() const { return begin() + size(); }
  std::size_t size() const { return bytes() / sizeof(T); }
  T& operator[](std::size_t i) const { return begin()[i]; }
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::size_t bytes() const { return range_.bytes; }
  MemoryKind kind() const;
  Name name() const;
  explicit operator bool() const { return range_.block != nullptr; }

  Range range() const { return range_; }
  operator Range() const { return range_; }  // NOLINT(google-explicit-constructor): a buffer passes as its whole range
  Range slice(std::size_t offset, std::size_t bytes) const { return range_.slice(offset, bytes); }

  // The host's view of pinned or pageable memory: the whole buffer, or `bytes` bytes from `offset`. The host must have
  // synchronised with all work on these bytes. Streams may use the other bytes meanwhile.
  template <class T>
  HostView<const T> host_read(Here here = Here::at()) const {
    return {range_, here};
  }
  template <class T>
  HostView<const T> host_read(std::size_t offset, std::size_t bytes, Here here = Here::at()) const {
    return {host_range(offset, bytes, alignof(T), here), here};
  }
  template <class T>
  HostView<T> host_write(Here here = Here::at()) {
    return {range_, here};
  }
  template <class T>
  HostView<T> host_write(std::size_t offset, std::size_t bytes, Here here = Here::at()) {
    return {host_range(offset, bytes, alignof(T), here), here};
  }

  // The address, for native calls. The host must not access device memory through it.
  void* native() const;

 private:
  friend class Device;
  friend class StreamRef;
  Buffer(std::shared_ptr<runtime::DeviceCore> core, runtime::Block* block);
  void release() noexcept;
  Range host_range(std::size_t offset, std::size_t bytes, std::size_t alignment, Here here) const;

  std::shared_ptr<runtime::DeviceCore> core_;
  Range range_;
};

}  // namespace slip
