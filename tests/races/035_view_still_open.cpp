#include "races/scenario.hpp"

namespace slip::races::program_035 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  const auto view = source.host_write<float>();
  work(s.a, "upload", {source}, {data});  // while the host may still be writing
}

const InCorpus kThis({35, "view still open", program, "upload", "the host"});

}  // namespace slip::races::program_035
