#include "races/scenario.hpp"

namespace slip::races::program_027 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  s.a.begin_capture();
  s.b.wait(s.a.record());
  work(s.a, "left", {}, {data});
  work(s.b, "right", {data}, {});
  s.a.wait(s.b.record());
  Plan plan = s.a.end_capture();
  s.a.launch(plan);
  s.a.sync();
}

const InCorpus kThis({27, "branches of a plan", program, "left", "right"});

}  // namespace slip::races::program_027
