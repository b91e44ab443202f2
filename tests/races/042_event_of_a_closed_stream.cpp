#include "races/scenario.hpp"

namespace slip::races::program_042 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event done;
  {
    const Stream brief = s.device.stream(StreamFlags::kNonBlocking);
    work(brief, "writer", {}, {data});
    brief.record(done);
  }
  s.b.wait(done);  // the event outlives its stream
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({42, "event of a closed stream", program});

}  // namespace slip::races::program_042
