#include "races/scenario.hpp"

namespace slip::races::program_031 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "writer", {}, {data});
  s.b.sync();
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({31, "sync of the wrong stream", program, "writer", "reader"});

}  // namespace slip::races::program_031
