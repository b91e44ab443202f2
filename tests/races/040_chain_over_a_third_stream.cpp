#include "races/scenario.hpp"

namespace slip::races::program_040 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream middle = s.device.stream(StreamFlags::kNonBlocking);
  work(s.a, "writer", {}, {data});
  middle.wait(s.a.record());
  s.b.wait(middle.record());
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({40, "chain over a third stream", program});

}  // namespace slip::races::program_040
