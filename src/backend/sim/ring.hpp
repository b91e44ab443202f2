// Ring: a queue in one array that grows by doubling. Each element has a running number that never changes. A popped
// element stays readable by its number until a later element overwrites it. Machine uses it for commands and queues.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace slip::sim {

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

}  // namespace slip::sim
