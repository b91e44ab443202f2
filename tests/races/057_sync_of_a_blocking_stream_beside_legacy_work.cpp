// The sync of a blocking stream waits for that stream only; legacy work is not part of it (rules 23, 24).
#include "races/scenario.hpp"

namespace slip::races::program_057 {

void program(Setting& s) {
  const Buffer data = s.pinned("data");
  const Stream blocking = s.device.stream();
  work(blocking, "first", {}, {});
  work(s.device.legacy_stream(), "writer", {}, {data});
  blocking.sync();
  { const auto view = data.host_read<float>(); }
  s.device.sync();
}

const InCorpus kThis({57, "sync of a blocking stream beside legacy work", program, "writer", "the host"});

}  // namespace slip::races::program_057
