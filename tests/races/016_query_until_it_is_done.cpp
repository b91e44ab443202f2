// A query that returns true orders like a sync.
#include "races/scenario.hpp"

namespace slip::races::program_016 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "writer", {}, {data});
  while (!s.a.query()) {}
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({16, "query until it is done", program});

}  // namespace slip::races::program_016
