#include "races/scenario.hpp"

namespace slip::races::program_030 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  s.a.begin_capture();
  work(s.a, "captured", {data}, {});
  Plan plan = s.a.end_capture();
  work(s.b, "input", {}, {data});
  s.a.wait(s.b.record());
  s.a.launch(plan);
  s.a.sync();
}

const InCorpus kThis({30, "plan launched behind its input", program});

}  // namespace slip::races::program_030
