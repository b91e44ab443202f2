#include "races/scenario.hpp"

namespace slip::races::program_054 {

void program(Setting& s) {
  const Buffer source = s.pinned("source"), target = s.pinned("target");
  work(s.a, "writer", {}, {source});
  s.b.wait(s.a.record());
  s.b.copy(target, source);
}

const InCorpus kThis({54, "copy on the host behind the writer", program});

}  // namespace slip::races::program_054
