#include "races/scenario.hpp"

namespace slip::races::program_018 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  work(s.a, "upload", {source}, {data});
  s.a.sync();
  static_cast<void>(source.host_write<float>().size());
}

const InCorpus kThis({18, "host writes the source after a sync", program});

}  // namespace slip::races::program_018
