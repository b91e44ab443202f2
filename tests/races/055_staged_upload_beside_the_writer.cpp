// A small pageable source is read by the host when the copy is issued, not when it runs (rule 38).
#include "races/scenario.hpp"

namespace slip::races::program_055 {

void program(Setting& s) {
  const Buffer source = s.device.alloc(kBytes, MemoryKind::kPageable, "source");
  const Buffer data = s.memory("data");
  s.a.host([] {}, {.writes = {{source}}, .name = "writer"});
  s.b.wait(s.a.record());
  s.b.copy(data, source);  // the order of streams does not hold the host
}

const InCorpus kThis({55, "staged upload beside the writer", program, "writer", "the host"});

}  // namespace slip::races::program_055
