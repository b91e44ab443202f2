#include "backend/cuda/cuda_stream.hpp"

#include <algorithm>

namespace slip {
namespace {
constexpr std::size_t kManyMarks = 64;
}

EventUse CudaStream::mark_at(std::uint64_t position) {
  const std::lock_guard lock(marks_lock_);
  // From the end: nearly always the last record is meant.
  const Mark* found = nullptr;
  for (auto mark = marks_.rbegin(); mark != marks_.rend() && mark->position >= position; ++mark) found = &*mark;
  return found ? found->event.share() : EventUse();
}

void CudaStream::add_mark(std::uint64_t position, EventUse event) {
  const std::lock_guard lock(marks_lock_);
  marks_.push_back({position, std::move(event)});
  if (marks_.size() % kManyMarks == 0) drop_done();
}

// Marks are reached in their order, so one question answers for all before. REQUIRES: marks_lock_.
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
  const std::lock_guard lock(marks_lock_);
  if (position <= done_.load(std::memory_order_relaxed)) return;
  done_.store(position, std::memory_order_release);
  while (!marks_.empty() && marks_.front().position <= position) marks_.pop_front();
}

bool CudaStream::drained() {
  const std::lock_guard lock(marks_lock_);
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

}  // namespace slip
