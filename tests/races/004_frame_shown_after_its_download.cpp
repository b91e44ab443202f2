#include "races/scenario.hpp"

namespace slip::races::program_004 {

void program(Setting& s) {
  const Buffer image = s.memory("image");
  Buffer frame = s.pinned("frame");
  work(s.a, "decode", {}, {image});
  work(s.a, "download", {image}, {frame});
  s.a.record().sync();
  static_cast<void>(frame.host_read<float>().size());
}

const InCorpus kThis({4, "frame shown after its download", program});

}  // namespace slip::races::program_004
