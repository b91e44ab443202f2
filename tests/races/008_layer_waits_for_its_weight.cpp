#include "races/scenario.hpp"

namespace slip::races::program_008 {

void program(Setting& s) {
  const Buffer weight = s.memory("weight");
  work(s.a, "load", {}, {weight});
  s.b.wait(s.a.record());
  work(s.b, "layer", {weight}, {});
}

const InCorpus kThis({8, "layer waits for its weight", program});

}  // namespace slip::races::program_008
