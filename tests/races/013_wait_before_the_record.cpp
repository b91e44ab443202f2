// Waiting for an event that was never recorded is no wait.
#include "races/scenario.hpp"

namespace slip::races::program_013 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event done;
  s.b.wait(done);
  work(s.a, "writer", {}, {data});
  s.a.record(done);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({13, "wait before the record", program, "writer", "reader"});

}  // namespace slip::races::program_013
