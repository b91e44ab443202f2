// The event is recorded after its stream waits for the writer, whose stream was closed.
#include "races/scenario.hpp"

namespace slip::races::program_076 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Event written, recorded;
  write_and_close(s, data, written);
  const Stream next = s.device.stream(StreamFlags::kNonBlocking);  // may reuse the slot of the closed stream
  work(next, "other", {}, {});
  next.wait(written);
  next.record(recorded);
  s.b.wait(recorded);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({76, "record after the wait for a closed stream", program});

}  // namespace slip::races::program_076
