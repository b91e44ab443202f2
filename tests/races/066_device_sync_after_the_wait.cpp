#include "races/scenario.hpp"

namespace slip::races::program_066 {

void program(Setting& s) {
  const Buffer data = s.pinned("data");
  const Stream other = s.second.stream(StreamFlags::kNonBlocking);
  work(other, "writer", {}, {data});
  work(s.b, "own", {}, {});
  s.b.wait(other.record());
  s.device.sync();
  { const auto view = data.host_read<float>(); }
}

const InCorpus kThis({66, "device sync after the wait", program, nullptr, nullptr, 2});

}  // namespace slip::races::program_066
