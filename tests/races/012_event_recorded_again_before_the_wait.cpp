#include "races/scenario.hpp"

namespace slip::races::program_012 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event done;
  work(s.a, "first", {}, {data});
  s.a.record(done);
  work(s.a, "second", {}, {data});
  s.a.record(done);
  s.b.wait(done);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({12, "event recorded again before the wait", program});

}  // namespace slip::races::program_012
