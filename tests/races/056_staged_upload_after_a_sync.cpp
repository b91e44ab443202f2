#include "races/scenario.hpp"

namespace slip::races::program_056 {

void program(Setting& s) {
  const Buffer source = s.device.alloc(kBytes, MemoryKind::kPageable, "source");
  const Buffer data = s.memory("data");
  s.a.host([] {}, {.writes = {{source}}, .name = "writer"});
  s.a.sync();
  s.b.copy(data, source);
}

const InCorpus kThis({56, "staged upload after a sync", program});

}  // namespace slip::races::program_056
