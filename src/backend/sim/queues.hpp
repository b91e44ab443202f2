// The queues of the simulation: Ring holds the commands of a stream and the entries of hardware queues and engines;
// Timers holds the future events. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/sim/arithmetic.hpp"

namespace slip::sim {

struct SimStream;

// A queue in one array that grows by doubling. Each element has a running number that never changes. A popped element
// stays readable by its number until a later element overwrites it.
template <class T>
class Ring {
 public:
  bool empty() const { return head_ == tail_; }
  std::size_t size() const { return static_cast<std::size_t>(tail_ - head_); }
  std::size_t capacity() const { return data_.size(); }
  std::uint64_t head() const { return head_; }  // number of the first element
  std::uint64_t tail() const { return tail_; }  // the last element's number plus one

  T& operator[](std::uint64_t number) { return data_[number & (data_.size() - 1)]; }
  const T& operator[](std::uint64_t number) const { return data_[number & (data_.size() - 1)]; }
  T& front() { return (*this)[head_]; }
  const T& front() const { return (*this)[head_]; }

  T& push(const T& value) {
    if (size() == data_.size()) grow();
    T& place = (*this)[tail_++];
    place = value;
    return place;
  }
  void pop() { ++head_; }

  // Frees the memory; the numbering continues. REQUIRES: empty.
  void shrink() { std::vector<T>().swap(data_); }

 private:
  void grow() {
    std::vector<T> larger(data_.empty() ? 8 : data_.size() * 2);
    // Popped elements that are still readable are moved, too.
    const std::uint64_t kept = tail_ < data_.size() ? tail_ : data_.size();
    for (std::uint64_t i = tail_ - kept; i != tail_; ++i) larger[i & (larger.size() - 1)] = std::move((*this)[i]);
    data_.swap(larger);
  }

  std::vector<T> data_;  // its size is a power of two, or 0
  std::uint64_t head_ = 0, tail_ = 0;
};

// The next event of a stream. It knows its index in the heap, so that Timers can move it.
struct Timer {
  static constexpr std::uint32_t kIdle = ~std::uint32_t{0};
  std::uint32_t place = kIdle;  // index in the heap; kIdle: not set
  SimStream* stream = nullptr;  // the owner
};

// The virtual time and the future events, in a binary heap. Each stream has one timer, because only one of its commands
// runs at a time. Timers of the same instant fire in the order in which they were set, which makes a run reproducible.
class Timers {
 public:
  Picos now() const { return now_; }
  void advance_to(Picos at) { now_ = at; }

  bool empty() const { return heap_.empty(); }
  Picos next() const { return heap_.empty() ? kEndOfTime : heap_.front().at; }

  void set(Timer& timer, Picos at) {
    const Entry entry{at, ++order_, &timer};
    if (timer.place == Timer::kIdle) {
      heap_.push_back(entry);
      rise(heap_.size() - 1, entry);
    } else if (earlier(entry, heap_[timer.place])) {
      rise(timer.place, entry);
    } else {
      sink(timer.place, entry);
    }
  }

  void cancel(Timer& timer) {
    const std::size_t place = timer.place;
    timer.place = Timer::kIdle;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;  // it was the last entry
    if (earlier(last, heap_[place])) rise(place, last);
    else sink(place, last);
  }

  // Removes and returns the first timer. REQUIRES: not empty.
  Timer& pop() {
    Timer& first = *heap_.front().timer;
    cancel(first);
    return first;
  }

 private:
  struct Entry {
    Picos at;
    std::uint64_t order;
    Timer* timer;
  };
  static bool earlier(const Entry& a, const Entry& b) { return a.at != b.at ? a.at < b.at : a.order < b.order; }

  void put(std::size_t place, const Entry& entry) {
    heap_[place] = entry;
    entry.timer->place = static_cast<std::uint32_t>(place);
  }
  void rise(std::size_t place, const Entry& entry) {
    while (place > 0 && earlier(entry, heap_[(place - 1) / 2])) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    put(place, entry);
  }
  void sink(std::size_t place, const Entry& entry) {
    for (;;) {
      std::size_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && earlier(heap_[child + 1], heap_[child])) ++child;
      if (!earlier(heap_[child], entry)) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, entry);
  }

  Picos now_ = 0;
  std::vector<Entry> heap_;
  std::uint64_t order_ = 0;
};

}  // namespace slip::sim
