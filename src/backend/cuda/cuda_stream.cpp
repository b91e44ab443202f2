#include "backend/cuda/cuda_stream.hpp"

#include <algorithm>

namespace slip {
namespace {
constexpr std::size_t kManyMarks = 64;
}

EventUse CudaStream::mark_at(std::uint64_t position) {
  const std::lock_guard lock(marks_mutex_);
  const auto found = std::lower_bound(marks_.begin(), marks_.end(), position,
                                      [](const Mark& mark, std::uint64_t wanted) { return mark.position < wanted; });
  return found == marks_.end() ? EventUse() : found->event.share();
}

void CudaStream::add_mark(std::uint64_t position, EventUse event) {
  const std::lock_guard lock(marks_mutex_);
  marks_.push_back({position, std::move(event)});
  if (marks_.size() % kManyMarks == 0) drop_done();
}

// Marks are reached in their order, so one question answers for all before. REQUIRES: marks_mutex_.
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
  const std::lock_guard lock(marks_mutex_);
  if (position <= done_.load(std::memory_order_relaxed)) return;
  done_.store(position, std::memory_order_release);
  while (!marks_.empty() && marks_.front().position <= position) marks_.pop_front();
}

bool CudaStream::drained() {
  const std::lock_guard lock(marks_mutex_);
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
