// When things of a step happened on the device: gradients came, calls began and ended, work that needs a gradient got
// to its wait and went on. Two sets of events, so that one step can be looked at while the next one is recorded; they
// are used again, and nothing is allocated once both have served.
#pragma once

#include <cstdint>
#include <vector>

#include "slip/gradients.hpp"

namespace slip {

// A step that was recorded, in picoseconds since its first gradient. Empty lists: nothing was recorded.
struct StepTimes {
  struct Wait {
    std::uint32_t parameter = 0;
    std::uint64_t stream = 0;
    Picos reached = 0, left = 0;
  };
  std::vector<Picos> arrivals;      // by parameter
  std::vector<Picos> starts, ends;  // by call
  std::vector<Wait> waits;          // in the order issued
  Picos next_step = 0;              // the next recorded step's first gradient; 0: not known
};

// When each parameter would be needed if nothing were late, by parameter, not before the end of the backward pass;
// those that nobody waited for come last. `stalls`: how long work stood still after that end, by wait.
struct Needs {
  std::vector<Picos> needed;
  std::vector<Picos> stalls;
  Picos backward_end = 0;
  Picos exposed = 0;  // of the stream that stood still longest
  struct Chain {
    std::uint64_t stream = 0;
    Picos left = 0, due = 0, stood = 0;
  };
  std::vector<Chain> chains;        // of waits, one for each stream
  std::vector<std::uint8_t> known;  // parameters that somebody waited for
};
void find_needs(const StepTimes& times, Needs& into);

class GradientClock {
 public:
  explicit GradientClock(std::size_t parameters) : parameters_(parameters) {}

  // A new step begins: whether it is recorded, and how many calls it has at most.
  void begin_step(bool recorded, std::size_t calls);
  bool records() const { return recording_; }
  void stop() { recording_ = false; }  // what was recorded of this step does not count

  void arrived(std::uint32_t parameter, StreamRef stream, Here here);
  void started(std::size_t call, StreamRef stream, Here here);
  void ended(std::size_t call, StreamRef stream, Here here);
  void reached(std::uint32_t parameter, StreamRef stream, Here here);
  void left(StreamRef stream, Here here);  // the wait that was reached last

  // Fills in the present step (0) or one before it (1), of which all must have been told. False: it was not recorded.
  // wait_for waits until it is done; for look() one that is not done is as one not recorded.
  bool wait_for(int ago, StepTimes& into) const;
  bool look(int ago, StepTimes& into) const;

 private:
  struct Wait {
    std::uint32_t parameter = 0;
    std::uint64_t stream = 0;
    TimedEvent reached, left;
  };
  struct Recording {
    std::uint64_t step = 0;  // 0: none
    std::vector<TimedEvent> arrivals, starts, ends;
    std::size_t arrived = 0;  // gradients
    std::uint32_t first = 0;  // the parameter that was told of first
    std::size_t calls = 0, waits = 0;
    std::vector<Wait> wait_list;
  };
  const Recording* recording(int ago) const;
  void fill(const Recording& of, StepTimes& into) const;
  static bool done(const Recording& of);

  const std::size_t parameters_;
  std::uint64_t step_ = 0;
  bool recording_ = false;
  Recording sets_[2];
};

}  // namespace slip
