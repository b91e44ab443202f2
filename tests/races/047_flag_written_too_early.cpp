#include "races/scenario.hpp"

namespace slip::races::program_047 {

void program(Setting& s) {
  const Buffer data = s.memory("data"), flag = s.device.alloc(4, MemoryKind::kDevice, "flag");
  s.a.fill(flag, 0);
  s.b.wait(s.a.record());
  s.b.wait_value(flag, 1);  // issued before the write, as one does for a signal to come
  work(s.b, "reader", {data}, {});
  s.a.write_value(flag, 1);
  work(s.a, "late", {}, {data});
}

const InCorpus kThis({47, "flag written too early", program, "reader", "late"});

}  // namespace slip::races::program_047
