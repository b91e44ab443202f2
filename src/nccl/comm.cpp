#include "nccl/comm.hpp"

#include <array>
#include <cstring>
#include <deque>

#include "base/fail.hpp"
#include "base/thread.hpp"

namespace slip::nccl {
namespace {

// cudaStreamLegacy. It replaces a null handle, which Device::adopt() refuses.
CUstream_st* legacy_stream() { return reinterpret_cast<CUstream_st*>(std::uintptr_t{1}); }

// The number of communicators that can exist at once. Closed slots are reused only when all slots have been used once,
// the slot closed longest ago first. A stale handle is recognised until its slot is reused.
constexpr std::size_t kSlots = 1 << 16;

constinit std::array<ncclComm, kSlots> g_slots{};

struct FreeSlots {
  base::Mutex mutex;
  std::size_t unused SLIP_GUARDED_BY(mutex) = 0;             // slots from here on were never used
  std::deque<ncclComm*> closed SLIP_GUARDED_BY(mutex) = {};  // in the order in which they were closed
};
FreeSlots& free_slots() { return base::process_wide<FreeSlots>(); }  // communicators may end while the process exits

bool is_slot(ncclComm_t handle) {
  const auto address = reinterpret_cast<std::uintptr_t>(handle);
  const auto first = reinterpret_cast<std::uintptr_t>(g_slots.data());
  return address >= first && address < first + sizeof(g_slots) && (address - first) % sizeof(ncclComm) == 0;
}

}  // namespace

// The streams end first: closing one does not wait for its work, and the communicator then waits for its calls.
Comm::~Comm() {
  const KeepCurrentGpu keep;
  streams_.clear();
  communicator_.reset();
}

void Comm::set_ranks(const Communicator& communicator) {
  rank_ = communicator.rank();
  nranks_ = communicator.nranks();
}

void Comm::set(Communicator&& communicator) {
  communicator_.emplace(std::move(communicator));
  const base::LockGuard lock(lock_);
  if (aborted_) communicator_->abort();
  state_.store(ncclSuccess, std::memory_order_release);  // release: publishes communicator_
}

void Comm::fail(const Outcome& outcome) {
  {
    const base::LockGuard lock(lock_);
    job_error_ = outcome;
  }
  state_.store(outcome.result, std::memory_order_release);  // release: publishes the text
}

void Comm::begin_job() {
  {
    const base::LockGuard lock(lock_);
    job_error_ = {};
  }
  jobs_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the thread is started afterwards
}

void Comm::end_job(const Outcome& outcome) {
  if (outcome.result != ncclSuccess) {
    const base::LockGuard lock(lock_);
    if (job_error_.result == ncclSuccess) job_error_ = outcome;
  }
  jobs_.fetch_sub(1, std::memory_order_release);  // release: publishes what the call did
}

Outcome Comm::state() const {
  if (is_making()) return {ncclInProgress, {}};
  {
    const base::LockGuard lock(lock_);
    if (job_error_.result != ncclSuccess) return job_error_;
  }
  if (is_revoked()) return {};  // as in NCCL: the calls have ended
  if (const std::optional<Error> error = communicator_->error())
    return {result_of(error->code()), base::bare_text(*error)};
  if (uses_gpus()) return {};
  const base::LockGuard lock(lock_);
  try {
    for (const KnownStream& known : streams_) {
      if (!known.stream.query(kNoPlace)) return {ncclInProgress, {}};
    }
  } catch (const Error&) {
    return outcome_of_exception();
  }
  return {};
}

void Comm::require_ready() const {
  const bool is_busy = is_making();
  const auto result = static_cast<ncclResult_t>(state_.load(std::memory_order_acquire));  // acquire: see set(), fail()
  if (result == ncclSuccess && !is_busy) [[likely]]
    return;
  if (is_busy)
    // Without the ranks: init writes them meanwhile.
    invalid_argument(
        "comm is not ready: its init, split, shrink or finalize is in progress; end the group that has this call, or "
        "poll ncclCommGetAsyncError");
  const base::LockGuard lock(lock_);
  throw ApiError(result, job_error_.text);
}

void Comm::finalize() {
  use_.store(Use::kFinalized, std::memory_order_relaxed);  // relaxed: see Use
  communicator_->finalize(kNoPlace);
}

// Not Communicator::abort(): the other ranks would count this rank as lost, and shrink() would leave it out. An earlier
// error has ended the calls already, and its text says more.
void Comm::revoke() {
  Use before = Use::kAll;
  // relaxed: see Use
  if (!use_.compare_exchange_strong(before, Use::kRevoked, std::memory_order_relaxed))
    invalid_argument("comm was {} before", before == Use::kRevoked ? "revoked" : "finalized");
  if (!communicator_->error())
    communicator_->fail(ErrorCode::kAborted, fmt::format("rank {} called ncclCommRevoke", rank_));
}

void Comm::abort() noexcept {
  const base::LockGuard lock(lock_);
  aborted_ = true;
  // acquire: this thread sees communicator_. If init has not ended, set() aborts it.
  if (state_.load(std::memory_order_acquire) == ncclSuccess) communicator_->abort();
}

Stream Comm::adopt(CUstream_st* native) const {
  return device_->device().adopt(native, Name(), NativeLifetime::kMayEnd);
}

StreamRef Comm::stream(CUstream_st* native) {
  CUstream_st* key = nullptr;
  if (uses_gpus()) key = native ? native : legacy_stream();
  const base::LockGuard lock(lock_);
  const std::uint64_t id = key ? stream_id(key) : 0;
  for (KnownStream& known : streams_) {
    if (known.native != key) continue;
    // Another id: the caller destroyed the stream, and CUDA made a new one with the same handle.
    if (id != 0 && known.id != id) known = {key, id, adopt(key)};
    return known.stream;
  }
  streams_.push_back({key, id, key ? adopt(key) : device_->device().stream()});
  return streams_.back().stream;
}

ncclResult_t Comm::finish_calls() {
  if (uses_gpus()) return ncclSuccess;
  const StreamRef own = stream(nullptr);
  if (!is_blocking()) return own.query(kNoPlace) ? ncclSuccess : ncclInProgress;
  own.sync(kNoPlace);
  return ncclSuccess;
}

void ValueReader::read(const RankDevice& device, const void* from, std::size_t bytes, const StreamRef& stream,
                       void* to) {
  const base::LockGuard lock(mutex_);
  if (!pinned_) pinned_ = device.device().alloc(sizeof(std::uint64_t), MemoryKind::kPinned, Name("factor"));
  stream.copy(pinned_.slice(0, bytes), device.range(from, bytes, "scalar"), {}, kNoPlace);
  stream.sync(kNoPlace);
  std::memcpy(to, pinned_.host_read<std::byte>().begin(), bytes);
}

void Comm::keep_error(const std::string& text) {
  const base::LockGuard lock(lock_);
  error_ = text;
}

std::string Comm::kept_error() const {
  const base::LockGuard lock(lock_);
  return error_;
}

int PreMulOps::add(PreMulOp op) {
  static std::atomic<int> last{ncclNumOps};
  // relaxed: only the uniqueness of the number counts. After 2^31 operators the numbers start again.
  op.id = last.fetch_add(1, std::memory_order_relaxed);
  if (op.id >= ncclMaxRedOp) last.store(ncclNumOps, std::memory_order_relaxed);  // relaxed: as above
  const base::LockGuard lock(lock_);
  ops_.push_back(op);
  return op.id;
}

bool PreMulOps::remove(int id) {
  const base::LockGuard lock(lock_);
  return std::erase_if(ops_, [&](const PreMulOp& op) { return op.id == id; }) > 0;
}

std::optional<PreMulOp> PreMulOps::find(int id) const {
  const base::LockGuard lock(lock_);
  for (const PreMulOp& op : ops_) {
    if (op.id == id) return op;
  }
  return std::nullopt;
}

void* Registrations::add() {
  const base::LockGuard lock(lock_);
  return &all_.emplace_back();
}

bool Registrations::remove(const void* handle) {
  const base::LockGuard lock(lock_);
  return all_.remove_if([&](const char& one) { return &one == handle; }) > 0;
}

Pin Pin::find(ncclComm_t handle) noexcept {
  if (!is_slot(handle)) return {};
  std::uint32_t uses = handle->uses.load(std::memory_order_relaxed);  // relaxed: the exchange below decides
  while ((uses & ncclComm::kOpen) != 0) {
    // acquire: this thread sees the communicator that open() stored.
    if (handle->uses.compare_exchange_weak(uses, uses + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return Pin(handle);
  }
  return {};
}

Pin Pin::of(ncclComm_t handle) {
  Pin pin = find(handle);
  if (pin) [[likely]]
    return pin;
  require_pointer(handle, "comm");
  if (!is_slot(handle)) invalid_argument("comm {} is not a communicator of this library", fmt::ptr(handle));
  invalid_argument("comm {} was destroyed or aborted", fmt::ptr(handle));
}

bool Pin::close() const noexcept {
  // relaxed: the communicator itself is published and released by other operations on `uses`.
  return (slot_->uses.fetch_and(~ncclComm::kOpen, std::memory_order_relaxed) & ncclComm::kOpen) != 0;
}

void Pin::release() noexcept {
  ncclComm* const slot = std::exchange(slot_, nullptr);
  // acq_rel: all uses by other threads come before the deletion by the last one.
  if (slot->uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  delete std::exchange(slot->comm, nullptr);
  FreeSlots& slots = free_slots();
  const base::LockGuard lock(slots.mutex);
  slots.closed.push_back(slot);
}

Pin Pin::open(Comm* comm) {
  ncclComm* slot = nullptr;
  {
    FreeSlots& slots = free_slots();
    const base::LockGuard lock(slots.mutex);
    if (slots.unused < kSlots) {
      slot = &g_slots[slots.unused++];
    } else if (!slots.closed.empty()) {
      slot = slots.closed.front();
      slots.closed.pop_front();
    }
  }
  if (!slot) {
    delete comm;
    throw ApiError(ncclSystemError, fmt::format("{} communicators are open, the maximum: destroy some", kSlots));
  }
  slot->comm = comm;
  slot->uses.store(ncclComm::kOpen | 1, std::memory_order_release);  // release: publishes the communicator
  return Pin(slot);
}

}  // namespace slip::nccl
