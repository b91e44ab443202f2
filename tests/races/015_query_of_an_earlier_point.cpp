#include "races/scenario.hpp"

namespace slip::races::program_015 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Event early = s.a.record();
  work(s.a, "writer", {}, {data});
  while (!early.query()) {}
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({15, "query of an earlier point", program, "writer", "reader"});

}  // namespace slip::races::program_015
