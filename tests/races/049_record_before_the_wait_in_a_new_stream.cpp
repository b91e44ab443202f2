// A record covers what its stream did before it, also in a stream that did nothing yet (rule 53).
#include "races/scenario.hpp"

namespace slip::races::program_049 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream between = s.device.stream(StreamFlags::kNonBlocking);
  work(s.a, "writer", {}, {data});
  const Event early = between.record();
  between.wait(s.a.record());
  s.b.wait(early);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({49, "record before the wait in a new stream", program, "writer", "reader"});

}  // namespace slip::races::program_049
