#include "races/scenario.hpp"

namespace slip::races::program_026 {

void program(Setting& s) {
  const Buffer here = s.memory("here");
  const Buffer there = s.second.alloc(kBytes, MemoryKind::kDevice, "there");
  const Stream remote = s.second.stream(StreamFlags::kNonBlocking);
  s.a.copy(there, here, "send");
  remote.wait(s.a.record());
  work(remote, "use", {there}, {});
}

const InCorpus kThis({26, "peer reads after the copy", program, nullptr, nullptr, 2});

}  // namespace slip::races::program_026
