#include "races/scenario.hpp"

namespace slip::races::program_058 {

void program(Setting& s) {
  const Buffer data = s.pinned("data");
  const Stream blocking = s.device.stream();
  work(blocking, "writer", {}, {data});
  s.device.legacy_stream().sync();
  { const auto view = data.host_read<float>(); }
}

const InCorpus kThis({58, "sync of the legacy stream", program});

}  // namespace slip::races::program_058
