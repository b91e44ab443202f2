// The event is recorded before its stream waits for the writer, whose stream was closed.
#include "races/scenario.hpp"

namespace slip::races::program_075 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event written, recorded;
  write_and_close(s, data, written);
  const Stream next = s.device.stream(StreamFlags::kNonBlocking);  // may reuse the slot of the closed stream
  work(next, "other", {}, {});
  next.record(recorded);
  next.wait(written);
  s.b.wait(recorded);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({75, "record before the wait for a closed stream", program, "writer", "reader"});

}  // namespace slip::races::program_075
