// Buffer: memory of a device or of the host, owned. Ops refer to it by Range.
//
// Freeing ordinary memory waits for the work of its devices, as cudaFree does. Memory from Stream::alloc is freed in
// stream order and waits for nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "slip/error.hpp"
#include "slip/name.hpp"
#include "slip/range.hpp"

namespace slip {

struct DeviceCore;

enum class MemoryKind : unsigned char {
  kDevice,    // of the device; the host cannot touch it
  kPinned,    // of the host, page-locked: copies are asynchronous
  kPageable,  // of the host, ordinary: copies may hold the host (rule 38)
};

const char* memory_kind_name(MemoryKind kind);

// The host's access to a buffer, from construction to destruction; the race checker sees both ends.
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
  operator Range() const { return range_; }  // NOLINT(google-explicit-constructor): a buffer is its whole range
  Range slice(std::size_t offset, std::size_t bytes) const { return range_.slice(offset, bytes); }

  // The host's view of pinned or pageable memory: of all of it, or of `bytes` from byte `offset` on. The host must have
  // synchronised with the work that uses these bytes; streams may use the others meanwhile.
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

  // The address, for native calls. Device memory must not be touched through it by the host.
  void* native() const;

 private:
  friend class Device;
  friend class StreamRef;
  Buffer(std::shared_ptr<DeviceCore> core, Block* block);
  void release() noexcept;
  Range host_range(std::size_t offset, std::size_t bytes, std::size_t alignment, Here here) const;

  std::shared_ptr<DeviceCore> core_;
  Range range_;
};

}  // namespace slip
