// The host fills the next batch while the copy still reads the last one.
#include "races/scenario.hpp"

namespace slip::races::program_017 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  work(s.a, "upload", {source}, {data});
  static_cast<void>(source.host_write<float>().size());
}

const InCorpus kThis({17, "host writes the source of a copy", program, "upload", "the host"});

}  // namespace slip::races::program_017
