// A wait takes the record that is there at its call, not the one that comes later.
#include "races/scenario.hpp"

namespace slip::races::program_011 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event done;
  work(s.a, "first", {}, {data});
  s.a.record(done);
  s.b.wait(done);
  work(s.a, "second", {}, {data});
  s.a.record(done);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({11, "event recorded again after the wait", program, "second", "reader"});

}  // namespace slip::races::program_011
