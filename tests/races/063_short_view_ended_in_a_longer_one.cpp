// Both views begin at the same byte; the end of the short one does not end the long one.
#include "races/scenario.hpp"

namespace slip::races::program_063 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  const auto whole = source.host_write<float>();
  { const HostView<float> part(source.slice(0, 64), Here::at()); }
  work(s.a, "upload", {source}, {data});
}

const InCorpus kThis({63, "short view ended in a longer one", program, "upload", "the host"});

}  // namespace slip::races::program_063
