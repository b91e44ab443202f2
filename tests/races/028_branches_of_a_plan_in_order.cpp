// Launched twice: one launch comes after the other.
#include "races/scenario.hpp"

namespace slip::races::program_028 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  s.a.begin_capture();
  work(s.a, "left", {}, {data});
  s.b.wait(s.a.record());
  work(s.b, "right", {data}, {});
  s.a.wait(s.b.record());
  Plan plan = s.a.end_capture();
  s.a.launch(plan);
  s.a.launch(plan);
  s.a.sync();
}

const InCorpus kThis({28, "branches of a plan in order", program});

}  // namespace slip::races::program_028
