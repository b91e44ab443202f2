// Order: happens-before of a program, by vector clocks. It knows only what the rules promise: order within a stream,
// event waits, the legacy stream's barrier, host synchronisation, and messages between host
// threads. The generator uses it to find accesses that are not ordered yet; checking a whole program finds its first
// race.
//
// There is a chain for each host thread and each stream. A thread knows only those calls of other threads
// that were handed to it, so a legacy op is a barrier for the ops that are known to have been issued before it.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "stress/program.hpp"

namespace slip::stress {

class Clock {
 public:
  std::uint32_t operator[](int chain) const {
    return static_cast<std::size_t>(chain) < at_.size() ? at_[static_cast<std::size_t>(chain)] : 0;
  }
  void set(int chain, std::uint32_t index) {
    if (at_.size() <= static_cast<std::size_t>(chain)) at_.resize(static_cast<std::size_t>(chain) + 1);
    at_[static_cast<std::size_t>(chain)] = index;
  }
  void join(const Clock& other);

 private:
  std::vector<std::uint32_t> at_;
};

inline constexpr int kMaxThreads = 4;
// Chains: host threads first, then streams.
inline int chain_of_stream(int stream) { return kMaxThreads + stream; }

// An earlier access that the step conflicts with and is not ordered after.
struct Conflict {
  int chain = 0;
  std::uint32_t index = 0;
};

class Order {
 public:
  explicit Order(const Program& program) : program_(program) {}
  std::optional<Conflict> conflict(const Step& step) const;
  void apply(const Step& step);

 private:
  struct Access {
    Span span;
    bool write;
    bool by_host;  // at the call, by the thread that makes it
  };
  struct Page {
    Conflict write;               // index 0: none
    std::vector<Conflict> reads;  // since
  };
  struct Known {
    Clock done;    // what has happened before what this thread does next
    Clock issued;  // what was issued before, by stream
  };

  std::vector<Access> accesses(const Step& step) const;
  bool on_host(const Span& span) const;
  bool pageable(const Span& span) const;
  bool waits_first(const Step& step) const;  // a copy between host buffers
  Clock clock_at(int stream, std::uint32_t index) const;
  Clock end_of(int stream, const Known& known) const;  // what waiting for the stream waits for
  Clock issue_clock(const Step& step) const;
  void note(const Step& step, const Clock& clock);
  bool is_op(Kind kind) const;

  const Program& program_;
  std::array<Known, kMaxThreads> threads_;
  std::array<std::uint32_t, kMaxThreads> host_index_{};
  std::vector<std::vector<Clock>> clocks_;  // by stream, by op
  std::vector<std::optional<Clock>> events_;
  std::vector<Known> handoffs_;
  std::vector<Clock> plans_;                     // the last launch
  std::vector<std::array<Page, kPages>> pages_;  // by buffer
};

// The index of the first step that races with an earlier one.
std::optional<std::size_t> first_race(const Program& program);

}  // namespace slip::stress
