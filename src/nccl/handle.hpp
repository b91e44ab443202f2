// Handles of communicators. An ncclComm_t points to a slot of a table that is never freed. So any value that a caller
// passes can be checked without touching freed memory: whether it is a slot of the table, and whether the slot is open.
//
// A call holds a Pin: the communicator is deleted by the last Pin after it was closed. So one thread may abort a
// communicator while another thread is inside a call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "nccl/nccl.h"

namespace slip::nccl {
class Comm;
}

// A slot. `uses` has the flag kOpen and the number of Pins. Each slot has its own cache line: when threads with one
// rank each shared one, a short call took twice as long.
struct alignas(64) ncclComm {
  static constexpr std::uint32_t kOpen = 1U << 31;
  std::atomic<std::uint32_t> uses{0};
  slip::nccl::Comm* comm = nullptr;  // constant while kOpen is set or a Pin exists
};

namespace slip::nccl {

class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Pin& operator=(Pin&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Pin() {
    if (slot_) release();
  }

  static Pin of(ncclComm_t handle);             // throws ApiError if the handle is null, unknown or closed
  static Pin find(ncclComm_t handle) noexcept;  // empty instead
  // Takes ownership, also if it throws, and returns a Pin of the new, open handle. Throws ApiError if no slot is free.
  static Pin open(Comm* comm);

  Comm* operator->() const { return slot_->comm; }
  Comm& operator*() const { return *slot_->comm; }
  ncclComm_t handle() const { return slot_; }
  explicit operator bool() const { return slot_ != nullptr; }

  // Closes the handle: no further Pin can be taken. False: another thread has closed it.
  bool close() const noexcept;

 private:
  explicit Pin(ncclComm* slot) : slot_(slot) {}
  void release() noexcept;
  ncclComm* slot_ = nullptr;
};

// The text of the last error of a communicator. Both ignore a handle that is not open.
void keep_error(ncclComm_t handle, const std::string& text);
std::string kept_error(ncclComm_t handle);

}  // namespace slip::nccl
