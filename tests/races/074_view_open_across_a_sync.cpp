// The host waited for the op before it went on with its view.
#include "races/scenario.hpp"

namespace slip::races::program_074 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Buffer target = s.pinned("target");
  const auto view = target.host_read<float>();
  work(s.a, "download", {data}, {target});
  s.a.sync();
}

const InCorpus kThis({74, "view open across a sync", program});

}  // namespace slip::races::program_074
