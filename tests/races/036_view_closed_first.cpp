#include "races/scenario.hpp"

namespace slip::races::program_036 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  { const auto view = source.host_write<float>(); }
  work(s.a, "upload", {source}, {data});
}

const InCorpus kThis({36, "view closed first", program});

}  // namespace slip::races::program_036
