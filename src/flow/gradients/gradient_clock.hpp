// When things of a step happened on the device: gradients came, calls began and ended, work that needs a gradient got
// to its wait and went on. Two sets of events, so that one step can be looked at while the next one is recorded; they
// are used again, and nothing is allocated once both have served.
#pragma once

#include <cstdint>
#include <vector>

#include "flow/gradients/gradient_report.hpp"
#include "slip/event.hpp"
#include "slip/stream.hpp"

namespace slip {

class GradientClock {
 public:
  explicit GradientClock(std::size_t parameters) : parameters_(parameters) {}

  // Between steps: makes what steps of so many calls need, so that recording one allocates nothing, unless somebody
  // waits more than once for a parameter.
  void prepare(std::size_t calls, StreamRef stream, Here here);

  // A new step begins: whether it is recorded, and how many calls it has at most.
  void begin_step(bool recorded, std::size_t calls);
  bool records() const { return recording_; }
  void stop() { recording_ = false; }  // what was recorded of this step does not count

  void arrived(std::uint32_t parameter, StreamRef stream, Here here);
  void started(std::size_t call, StreamRef stream, Here here);
  void ended(std::size_t call, StreamRef stream, Here here);
  // A wait for a parameter (GradientTimes::kAll: for all of them), which is one for that call.
  void reached(std::uint32_t parameter, std::uint32_t call, StreamRef stream, Here here);
  void left(StreamRef stream, Here here);  // the wait that was reached last

  // Fills in the present step (0) or one before it (1), of which all must have been told. False: it was not recorded.
  // wait_for waits until it is done; for look() one that is not done is as one not recorded.
  bool wait_for(int ago, GradientTimes& into) const;
  bool look(int ago, GradientTimes& into) const;

 private:
  struct Wait {
    std::uint32_t parameter = 0, call = 0;
    std::uint64_t stream = 0;
    TimedEvent reached, left;
  };
  struct Recording {
    std::uint64_t step = 0;  // 0: none
    std::vector<TimedEvent> arrivals, starts, ends;
    std::vector<std::uint64_t> sources;  // streams, by parameter
    std::size_t arrived = 0;             // gradients
    std::uint32_t first = 0;             // the parameter that was told of first
    std::size_t calls = 0, waits = 0;
    std::vector<Wait> wait_list;
  };
  void make_room(Recording& set, std::size_t calls) const;
  const Recording* recording(int ago) const;
  void fill(const Recording& of, GradientTimes& into) const;
  static bool done(const Recording& of);

  const std::size_t parameters_;
  std::uint64_t step_ = 0;
  bool recording_ = false;
  Recording sets_[2];
};

}  // namespace slip
