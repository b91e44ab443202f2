#include "races/scenario.hpp"

namespace slip::races::program_006 {

void program(Setting& s) {
  const Buffer slot = s.memory("slot");
  Event used;
  for (int k = 0; k < 3; ++k) {
    s.a.wait(used);  // not recorded yet the first time: nothing to wait for
    work(s.a, "load", {}, {slot});
    s.b.wait(s.a.record());
    work(s.b, "layer", {slot}, {});
    s.b.record(used);
  }
}

const InCorpus kThis({6, "prefetch into a free slot", program});

}  // namespace slip::races::program_006
