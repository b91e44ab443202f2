#include "races/scenario.hpp"

namespace slip::races::program_029 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  s.a.begin_capture();
  work(s.a, "captured", {data}, {});
  Plan plan = s.a.end_capture();
  work(s.b, "input", {}, {data});
  s.a.launch(plan);
  s.a.sync();
}

const InCorpus kThis({29, "plan launched beside its input", program, "input", "captured"});

}  // namespace slip::races::program_029
