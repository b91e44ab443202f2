// Each of the two ops may run before the view ends.
#include "races/scenario.hpp"

namespace slip::races::program_073 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  const auto view = source.host_write<float>();
  work(s.a, "upload", {source}, {data});
  work(s.a, "check", {source}, {});
}

const InCorpus kThis({73, "two ops in an open view", program, "check", "the host"});

}  // namespace slip::races::program_073
