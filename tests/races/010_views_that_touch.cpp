#include "races/scenario.hpp"

namespace slip::races::program_010 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "left", {}, {data.slice(0, 1024)});
  work(s.b, "right", {}, {data.slice(1024, 1024)});
}

const InCorpus kThis({10, "views that touch", program});

}  // namespace slip::races::program_010
