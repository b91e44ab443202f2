// Stopwatch: how long work takes on a device, by its own clock. Work is issued behind a closed gate, so that the host's
// calls do not count, and in batches, of which the median counts. One thread.
#pragma once

#include <functional>

#include "slip/device.hpp"

namespace slip {

class Stopwatch {
 public:
  // Issues one piece of work, the `index`-th of its batch.
  using Issue = std::function<void(StreamRef stream, int index)>;
  struct Work {
    const Issue& issue;
    Picos time;  // of one piece, alone
  };

  explicit Stopwatch(const Device& device);

  // Of one piece, after a warm-up; never 0. Throws the work's error.
  Picos time(const Issue& issue);
  // Of one piece of `main` while pieces of `beside` run in another stream.
  Picos time_beside(const Work& main, const Work& beside);

 private:
  class Gate;
  Picos batch(const Issue& issue, int count);
  Picos batch_beside(const Issue& main, int main_count, const Issue& beside, int beside_count);

  Device device_;
  int room_;     // pieces that a gate may hold back
  Buffer word_;  // what the gate waits for
  std::uint32_t round_ = 0;
  Stream main_, beside_;
};

}  // namespace slip
