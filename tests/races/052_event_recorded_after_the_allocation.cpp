#include "races/scenario.hpp"

namespace slip::races::program_052 {

void program(Setting& s) {
  const Buffer other = s.memory("other");
  work(s.a, "before", {}, {other});
  const Buffer data = s.a.alloc(kBytes, "data");
  s.b.wait(s.a.record());
  work(s.b, "user", {}, {data});
  s.a.wait(s.b.record());
}

const InCorpus kThis({52, "event recorded after the allocation", program});

}  // namespace slip::races::program_052
