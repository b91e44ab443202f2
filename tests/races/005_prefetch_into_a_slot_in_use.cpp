// The wait of the loader for the reader is missing: the next weight is loaded over the one that is being read. More
// than one system switched prefetching off because this wait could not be proven.
#include "races/scenario.hpp"

namespace slip::races::program_005 {

void program(Setting& s) {
  const Buffer slot = s.memory("slot");
  for (int k = 0; k < 3; ++k) {
    work(s.a, "load", {}, {slot});
    s.b.wait(s.a.record());
    work(s.b, "layer", {slot}, {});
  }
}

const InCorpus kThis({5, "prefetch into a slot in use", program, "layer", "load"});

}  // namespace slip::races::program_005
