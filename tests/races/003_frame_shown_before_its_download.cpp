// Black frames, but only where the bus is slow: on a fast one the copy is done by the time somebody looks.
#include "races/scenario.hpp"

namespace slip::races {
namespace {

void program(Setting& s) {
  const Buffer image = s.memory("image");
  Buffer frame = s.pinned("frame");
  work(s.a, "decode", {}, {image});
  work(s.a, "download", {image}, {frame});
  static_cast<void>(frame.host_read<float>().size());
}

const InCorpus kThis({3, "frame shown before its download", program, "download", "the host"});

}  // namespace
}  // namespace slip::races
