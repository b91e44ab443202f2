#include "races/scenario.hpp"

namespace slip::races::program_014 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event done;
  work(s.a, "writer", {}, {data});
  s.a.record(done);
  s.b.wait(done);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({14, "wait after the record", program});

}  // namespace slip::races::program_014
