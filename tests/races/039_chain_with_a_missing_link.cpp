#include "races/scenario.hpp"

namespace slip::races::program_039 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream middle = s.device.stream(StreamFlags::kNonBlocking);
  const Event idle = middle.record();
  work(s.a, "writer", {}, {data});
  middle.wait(s.a.record());
  s.b.wait(idle);  // of the middle stream, but from before it waited
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({39, "chain with a missing link", program, "writer", "reader"});

}  // namespace slip::races::program_039
