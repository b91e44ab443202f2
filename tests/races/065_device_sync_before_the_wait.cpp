// The sync of one device covers the other's work only if a stream waited for that before (rules 21, 68, 76).
#include "races/scenario.hpp"

namespace slip::races::program_065 {

void program(Setting& s) {
  const Buffer data = s.pinned("data");
  const Stream other = s.second.stream(StreamFlags::kNonBlocking);
  work(other, "writer", {}, {data});
  work(s.b, "own", {}, {});
  s.device.sync();
  s.b.wait(other.record());
  { const auto view = data.host_read<float>(); }
}

const InCorpus kThis({65, "device sync before the wait", program, "writer", "the host", 2});

}  // namespace slip::races::program_065
