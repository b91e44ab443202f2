// ReadRing: asynchronous reads with io_uring, for DiskQueue. It uses raw system calls, so liburing is not needed. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "slip/error.hpp"

struct io_uring_params;
struct io_uring_sqe;
struct io_uring_cqe;

namespace slip {

class ReadRing {
 public:
  // Null: the kernel is too old, or a seccomp filter forbids io_uring.
  static std::unique_ptr<ReadRing> open(unsigned entries);
  ~ReadRing();
  ReadRing(const ReadRing&) = delete;
  ReadRing& operator=(const ReadRing&) = delete;

  // Adds a read; at most `entries` may be in flight. The next wait() or poll() submits it to the kernel.
  void put(int descriptor, std::uint64_t offset, void* into, std::size_t bytes, std::uint64_t tag);

  struct Done {
    std::uint64_t tag = 0;
    std::int32_t result = 0;  // bytes, or minus errno
  };
  Done wait(Here here);                 // waits until any read is done
  std::optional<Done> poll(Here here);  // does not wait; nothing: no read is done

 private:
  ReadRing() = default;
  bool map(const io_uring_params& params);
  bool take(Done& done);
  void enter(unsigned wanted, Here here);

  struct Mapping {
    ~Mapping();
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  int ring_ = -1;
  Mapping queues_, entries_;
  std::uint32_t *submit_tail_ = nullptr, *submit_order_ = nullptr;
  std::uint32_t *done_head_ = nullptr, *done_tail_ = nullptr;
  std::uint32_t submit_mask_ = 0, done_mask_ = 0;
  io_uring_sqe* requests_ = nullptr;
  io_uring_cqe* results_ = nullptr;
  unsigned unsent_ = 0;
};

}  // namespace slip
