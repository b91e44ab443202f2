// A record in a blocking stream comes after legacy work (rules 3, 9), also if that is over already.
#include "races/scenario.hpp"

namespace slip::races::program_070 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream blocking = s.device.stream();
  work(s.device.legacy_stream(), "writer", {}, {data});
  work(s.a, "other", {}, {});
  s.a.sync();
  s.b.wait(blocking.record());
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({70, "record in a blocking stream behind legacy work", program});

}  // namespace slip::races::program_070
