// Makes every call of a communicator once and compares with results that one thread computes.
#pragma once

#include <fmt/format.h>

#include <string>

#include "slip/communicator.hpp"
#include "slip/stream.hpp"

namespace slip::test {

// Word i of rank r in whatever it gives.
inline std::uint32_t given_word(int rank, std::size_t i) {
  return static_cast<std::uint32_t>(rank) * 1'000'003U + static_cast<std::uint32_t>(i) * 7 + 1;
}

// Every call once, with `n` words of each rank.
class EveryCall {
 public:
  EveryCall(Communicator& comm, const Device& device, std::size_t n) : comm_(comm), device_(device), n_(n) {}

  std::string wrong() {
    const auto sum = [&](std::size_t i) {
      std::uint32_t result = 0;
      for (int rank = 0; rank < size_; ++rank) result += given_word(rank, i);
      return result;
    };
    const auto all = [&](std::size_t i) { return given_word(static_cast<int>(i / n_), i % n_); };
    const auto mine = [&](std::size_t i) { return given_word(rank_, i); };
    const std::size_t many = n_ * static_cast<std::size_t>(size_);
    const std::size_t own = n_ * static_cast<std::size_t>(rank_);
    const int last = size_ - 1, before = (rank_ + last) % size_, next = (rank_ + 1) % size_;
    check("all_reduce", n_, n_, mine, sum,
          [&](Range to, Range from) { comm_.all_reduce(to, from, DataType::kU32, ReduceOp::kSum, stream_); });
    check(
        "reduce", n_, n_, mine, sum,
        [&](Range to, Range from) { comm_.reduce(to, from, DataType::kU32, ReduceOp::kSum, last, stream_); },
        rank_ == last);
    check(
        "reduce_scatter", n_, many, mine, [&](std::size_t i) { return sum(own + i); },
        [&](Range to, Range from) { comm_.reduce_scatter(to, from, DataType::kU32, ReduceOp::kSum, stream_); });
    check(
        "broadcast", n_, n_, mine, [&](std::size_t i) { return given_word(last, i); },
        [&](Range to, Range from) { comm_.broadcast(to, from, last, stream_); });
    check("all_gather", many, n_, mine, all, [&](Range to, Range from) { comm_.all_gather(to, from, stream_); });
    check(
        "gather", many, n_, mine, all, [&](Range to, Range from) { comm_.gather(to, from, last, stream_); },
        rank_ == last);
    check(
        "scatter", n_, many, mine, [&](std::size_t i) { return given_word(0, own + i); },
        [&](Range to, Range from) { comm_.scatter(to, from, 0, stream_); });
    check(
        "all_to_all", many, many, mine,
        [&](std::size_t i) { return given_word(static_cast<int>(i / n_), own + i % n_); },
        [&](Range to, Range from) { comm_.all_to_all(to, from, stream_); });
    check(
        "send and recv", n_, n_, mine, [&](std::size_t i) { return given_word(before, i); },
        [&](Range to, Range from) {
          Group group;
          comm_.send(from, next, stream_);
          comm_.recv(to, before, stream_);
          group.end();
        });
    comm_.barrier(stream_);
    stream_.sync();
    return wrong_;
  }

 private:
  template <class Give, class Expect, class Issue>
  void check(const char* what, std::size_t to_words, std::size_t from_words, const Give& give, const Expect& expect,
             const Issue& issue, bool counts = true) {
    Buffer to = device_.alloc(to_words * 4, MemoryKind::kPinned),
           from = device_.alloc(from_words * 4, MemoryKind::kPinned);
    std::uint32_t* const words = from.host_write<std::uint32_t>().begin();
    for (std::size_t i = 0; i < from_words; ++i) words[i] = give(i);
    issue(to, from);
    stream_.sync();
    const HostView<const std::uint32_t> got = to.host_read<std::uint32_t>();
    for (std::size_t i = 0; counts && wrong_.empty() && i < to_words; ++i) {
      if (got[i] != expect(i))
        wrong_ = fmt::format("{} of {} words: word {} of rank {} is {}, not {}", what, n_, i, rank_, got[i], expect(i));
    }
  }

  Communicator& comm_;
  const Device& device_;
  const Stream stream_ = device_.stream();
  const std::size_t n_;
  const int rank_ = comm_.rank(), size_ = comm_.nranks();
  std::string wrong_;
};

}  // namespace slip::test
