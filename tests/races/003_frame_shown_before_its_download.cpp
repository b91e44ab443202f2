// Symptom: black frames, but only on a slow bus. On a fast one the copy ends before the host reads the frame.
#include "races/scenario.hpp"

namespace slip::races::program_003 {

void program(Setting& s) {
  const Buffer image = s.memory("image");
  Buffer frame = s.pinned("frame");
  work(s.a, "decode", {}, {image});
  work(s.a, "download", {image}, {frame});
  static_cast<void>(frame.host_read<float>().size());
}

const InCorpus kThis({3, "frame shown before its download", program, "download", "the host"});

}  // namespace slip::races::program_003
