#include "store/read_ring.hpp"

#include <fmt/format.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace slip {
namespace {

// Needed: one mapping for both queues (Linux 5.4) and IORING_OP_READ (Linux 5.6). The latter has no feature bit;
// IORING_FEAT_RW_CUR_POS came with the same release.
constexpr std::uint32_t kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;

void* map_ring(int ring, std::size_t bytes, std::uint64_t what) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, static_cast<off_t>(what));
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

ReadRing::Mapping::~Mapping() {
  if (memory) ::munmap(memory, bytes);
}

std::unique_ptr<ReadRing> ReadRing::open(unsigned entries) {
  io_uring_params params{};
  const long ring = ::syscall(SYS_io_uring_setup, entries, &params);
  if (ring < 0) return nullptr;
  std::unique_ptr<ReadRing> result(new ReadRing);
  result->ring_ = static_cast<int>(ring);
  if ((params.features & kNeeded) != kNeeded || !result->map(params)) return nullptr;
  return result;
}

bool ReadRing::map(const io_uring_params& params) {
  const std::size_t submit_bytes = params.sq_off.array + params.sq_entries * sizeof(std::uint32_t);
  const std::size_t done_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  queues_.bytes = submit_bytes > done_bytes ? submit_bytes : done_bytes;
  queues_.memory = map_ring(ring_, queues_.bytes, IORING_OFF_SQ_RING);
  entries_.bytes = params.sq_entries * sizeof(io_uring_sqe);
  entries_.memory = map_ring(ring_, entries_.bytes, IORING_OFF_SQES);
  if (!queues_.memory || !entries_.memory) return false;
  auto* base = static_cast<char*>(queues_.memory);
  const auto word = [base](std::uint32_t offset) { return reinterpret_cast<std::uint32_t*>(base + offset); };
  submit_tail_ = word(params.sq_off.tail);
  submit_order_ = word(params.sq_off.array);
  submit_mask_ = *word(params.sq_off.ring_mask);
  done_head_ = word(params.cq_off.head);
  done_tail_ = word(params.cq_off.tail);
  done_mask_ = *word(params.cq_off.ring_mask);
  requests_ = static_cast<io_uring_sqe*>(entries_.memory);
  results_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
  return true;
}

ReadRing::~ReadRing() {
  if (ring_ >= 0) ::close(ring_);
}

void ReadRing::put(int descriptor, std::uint64_t offset, void* into, std::size_t bytes, std::uint64_t tag) {
  const std::uint32_t tail = *submit_tail_;  // written by this thread only
  const std::uint32_t place = tail & submit_mask_;
  io_uring_sqe& request = requests_[place];
  std::memset(&request, 0, sizeof request);
  request.opcode = IORING_OP_READ;
  request.fd = descriptor;
  request.off = offset;
  request.addr = reinterpret_cast<std::uintptr_t>(into);
  request.len = static_cast<std::uint32_t>(bytes);
  request.user_data = tag;
  submit_order_[place] = place;
  // release: the kernel sees the request before the tail that includes it.
  std::atomic_ref(*submit_tail_).store(tail + 1, std::memory_order_release);
  ++unsent_;
}

bool ReadRing::take(Done& done) {
  const std::uint32_t head = *done_head_;  // written by this thread only
  // acquire: sees the results that the kernel wrote before it advanced the tail.
  if (head == std::atomic_ref(*done_tail_).load(std::memory_order_acquire)) return false;
  const io_uring_cqe& result = results_[head & done_mask_];
  done = {result.user_data, result.res};
  // release: the kernel may reuse the entry only after this thread has read it.
  std::atomic_ref(*done_head_).store(head + 1, std::memory_order_release);
  return true;
}

// Submits the added reads, and waits until there are `wanted` results.
void ReadRing::enter(unsigned wanted, Here here) {
  const unsigned flags = wanted > 0 ? IORING_ENTER_GETEVENTS : 0;
  const long sent = ::syscall(SYS_io_uring_enter, ring_, unsent_, wanted, flags, nullptr, 0);
  if (sent >= 0) unsent_ -= static_cast<unsigned>(sent);
  else if (errno != EINTR && errno != EAGAIN && errno != EBUSY)
    throw Error(Code::kIo, fmt::format("io_uring stopped: {}", std::strerror(errno)), here);
}

ReadRing::Done ReadRing::wait(Here here) {
  Done done;
  while (unsent_ > 0 || !take(done)) enter(1, here);
  return done;
}

std::optional<ReadRing::Done> ReadRing::poll(Here here) {
  while (unsent_ > 0) enter(0, here);
  Done done;
  return take(done) ? std::optional(done) : std::nullopt;
}

}  // namespace slip
