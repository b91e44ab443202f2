#include "backend/cuda/cuda_stream.hpp"

#include <algorithm>
#include <map>

#include "backend/cuda/check.hpp"

namespace slip::backend {
namespace {
// Whenever the number of marks is a multiple of this, add_mark() tries to drop the first half of them.
constexpr std::size_t kManyMarks = 64;
}  // namespace

EventUse CudaStream::mark_at(std::uint64_t position) {
  const base::LockGuard lock(marks_lock_);
  // Search from the end: nearly all callers ask for the last record.
  const Mark* found = nullptr;
  for (auto mark = marks_.rbegin(); mark != marks_.rend() && mark->position >= position; ++mark) found = &*mark;
  return found ? found->event.share() : EventUse();
}

void CudaStream::add_mark(std::uint64_t position, EventUse event) {
  const base::LockGuard lock(marks_lock_);
  marks_.push_back({position, std::move(event)});
  if (marks_.size() % kManyMarks == 0) drop_done();
}

// Drops the first half of the marks if they are reached. Marks are reached in order, so one query suffices.
void CudaStream::drop_done() {
  const std::size_t half = marks_.size() / 2;
  if (cudaEventQuery(marks_[half].event.native()) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // not ready yet, or a fault that the next call will report
    return;
  }
  done_.store(std::max(done_.load(std::memory_order_relaxed), marks_[half].position), std::memory_order_release);
  marks_.erase(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(half) + 1);
}

void CudaStream::note_done(std::uint64_t position) {
  const base::LockGuard lock(marks_lock_);
  if (position <= done_.load(std::memory_order_relaxed)) return;
  done_.store(position, std::memory_order_release);
  while (!marks_.empty() && marks_.front().position <= position) marks_.pop_front();
}

bool CudaStream::drained() {
  const base::LockGuard lock(marks_lock_);
  if (!marks_.empty()) {
    if (cudaEventQuery(marks_.back().event.native()) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    done_.store(marks_.back().position, std::memory_order_release);
    marks_.clear();
  }
  return true;
}

void CudaEvent::end() noexcept {
  const base::LockGuard lock(pool_.lock_);
  revive();
  pool_.idle_[timed_ ? 1 : 0].push_back(this);
}

Picos CudaEvent::since(const runtime::EventState& start) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(start).native_, native_),
        "cudaEventElapsedTime", pool_.device());
  return static_cast<Picos>(static_cast<double>(milliseconds) * 1e9);
}

EventPool& EventPool::of(int device) {
  static base::Mutex mutex;
  static auto* const kPools SLIP_PT_GUARDED_BY(mutex) = new std::map<int, std::unique_ptr<EventPool>>;
  const base::LockGuard lock(mutex);
  std::unique_ptr<EventPool>& pool = (*kPools)[device];
  if (!pool) pool.reset(new EventPool(device));
  return *pool;
}

CudaEvent* EventPool::take(bool timed) {
  {
    const base::LockGuard lock(lock_);
    std::vector<CudaEvent*>& idle = idle_[timed ? 1 : 0];
    if (!idle.empty()) {
      CudaEvent* event = idle.back();
      idle.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreateWithFlags",
        device_);
  return new CudaEvent(*this, event, timed);
}

}  // namespace slip::backend
