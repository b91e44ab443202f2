#include "races/scenario.hpp"

namespace slip::races::program_024 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream other = s.device.stream(StreamFlags::kNonBlocking);
  Event done;
  work(s.a, "writer", {}, {data});
  s.a.record(done);
  other.wait(done);
  other.record(done);
  s.b.wait(done);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({24, "event passed on by another stream", program});

}  // namespace slip::races::program_024
