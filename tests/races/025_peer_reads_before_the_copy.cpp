#include "races/scenario.hpp"

namespace slip::races::program_025 {

void program(Setting& s) {
  const Buffer here = s.memory("here");
  const Buffer there = s.second.alloc(kBytes, MemoryKind::kDevice, "there");
  const Stream remote = s.second.stream(StreamFlags::kNonBlocking);
  s.a.copy(there, here, "send");
  work(remote, "use", {there}, {});
}

const InCorpus kThis({25, "peer reads before the copy", program, "send", "use", 2});

}  // namespace slip::races::program_025
