// The two views overlap by one byte.
#include "races/scenario.hpp"

namespace slip::races::program_009 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "left", {}, {data.slice(0, 1025)});
  work(s.b, "right", {}, {data.slice(1024, 1024)});
}

const InCorpus kThis({9, "views that overlap", program, "left", "right"});

}  // namespace slip::races::program_009
