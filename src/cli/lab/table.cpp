// The labs of this program, one row each.
#include <array>

#include "cli/lab/lab.hpp"

namespace slip::cli {

std::span<const Lab> labs() {
  static constexpr std::array kLabs = {
      Lab{"overlap", "copies behind kernels: streams, chunks, order of issue, pinned and pageable memory", lab_overlap},
      Lab{"host", "which calls hold the host, and which return at once", lab_host},
      Lab{"default-stream", "what the default stream orders: blocking, non-blocking, per-thread", lab_default_stream},
      Lab{"weights", "four layers in two weight slots instead of four: memory against time", lab_weights},
      Lab{"hook", "a gradient hook that waits for communication: same stream, own stream, one queue", lab_hook},
      Lab{"gradients", "a training step: hooks that block, own stream, one queue, DDP's rule, planned", lab_gradients},
      Lab{"events", "how many events the two slots need: five edges, three events or one", lab_events},
      Lab{"deadlock", "ranks that wait in a circle: two communicators in another order, and one outside", lab_deadlock,
          true},
      Lab{"questions", "questions that learners of streams ask, each answered by an experiment", lab_questions},
  };
  return kLabs;
}

}  // namespace slip::cli
