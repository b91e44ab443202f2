// The flag is 1 when only the first half is written.
#include "races/scenario.hpp"

namespace slip::races::program_045 {

void program(Setting& s) {
  const Buffer data = s.memory("data"), flag = s.device.alloc(4, MemoryKind::kDevice, "flag");
  s.a.fill(flag, 0);
  s.b.wait(s.a.record());
  work(s.a, "first", {}, {data.slice(0, 64)});
  s.a.write_value(flag, 1);
  work(s.a, "second", {}, {data.slice(64, 64)});
  s.a.write_value(flag, 2);
  s.b.wait_value(flag, 1);
  work(s.b, "reader", {data.slice(0, 128)}, {});
}

const InCorpus kThis({45, "flag reached by an earlier write", program, "second", "reader"});

}  // namespace slip::races::program_045
