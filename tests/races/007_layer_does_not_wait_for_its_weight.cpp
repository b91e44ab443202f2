#include "races/scenario.hpp"

namespace slip::races::program_007 {

void program(Setting& s) {
  const Buffer weight = s.memory("weight");
  work(s.a, "load", {}, {weight});
  work(s.b, "layer", {weight}, {});
}

const InCorpus kThis({7, "layer does not wait for its weight", program, "load", "layer"});

}  // namespace slip::races::program_007
