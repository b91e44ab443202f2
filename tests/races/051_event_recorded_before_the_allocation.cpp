// The event is older than the memory (rule 85).
#include "races/scenario.hpp"

namespace slip::races::program_051 {

void program(Setting& s) {
  const Buffer other = s.memory("other");
  work(s.a, "before", {}, {other});
  const Event early = s.a.record();
  const Buffer data = s.a.alloc(kBytes, "data");
  s.b.wait(early);
  work(s.b, "user", {}, {data});
  s.a.wait(s.b.record());
}

const InCorpus kThis({51, "event recorded before the allocation", program, "stream-ordered allocation", "user"});

}  // namespace slip::races::program_051
