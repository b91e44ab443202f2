// The host itself copies between two buffers of its own (rule 36), after the work of the copy's stream only.
#include "races/scenario.hpp"

namespace slip::races::program_053 {

void program(Setting& s) {
  const Buffer source = s.pinned("source"), target = s.pinned("target");
  work(s.a, "writer", {}, {source});
  s.b.copy(target, source);
}

const InCorpus kThis({53, "copy on the host beside the writer", program, "writer", "the host"});

}  // namespace slip::races::program_053
