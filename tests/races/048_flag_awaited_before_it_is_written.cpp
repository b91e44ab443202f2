// The wait is issued before the write, as one does for a signal to come.
#include "races/scenario.hpp"

namespace slip::races::program_048 {

void program(Setting& s) {
  const Buffer data = s.memory("data"), flag = s.device.alloc(4, MemoryKind::kDevice, "flag");
  s.a.fill(flag, 0);
  s.b.wait(s.a.record());
  s.b.wait_value(flag, 1);
  work(s.b, "reader", {data}, {});
  work(s.a, "writer", {}, {data});
  s.a.write_value(flag, 1);
}

const InCorpus kThis({48, "flag awaited before it is written", program});

}  // namespace slip::races::program_048
