// The wait is issued before the write, as one does for a signal to come.
#include "races/scenario.hpp"

namespace slip::races::program_048 {

void program(Setting& s) {
  const Buffer data = s.memory("data"), word = s.device.alloc(4, MemoryKind::kDevice, "word");
  s.a.fill(word, 0);
  s.b.wait(s.a.record());
  s.b.wait_value(word, 1);
  work(s.b, "reader", {data}, {});
  work(s.a, "writer", {}, {data});
  s.a.write_value(word, 1);
}

const InCorpus kThis({48, "word awaited before it is written", program});

}  // namespace slip::races::program_048
