// A non-blocking stream does not wait for legacy work, and neither does its record.
#include "races/scenario.hpp"

namespace slip::races::program_069 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.device.legacy_stream(), "writer", {}, {data});
  work(s.a, "other", {}, {});
  s.a.sync();  // on a simulated device the legacy work is over by now, which orders nothing
  s.b.wait(s.a.record());
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({69, "record in a non-blocking stream behind legacy work", program, "writer", "reader"});

}  // namespace slip::races::program_069
