// The reader is issued before the free, so the memory is there; but nothing makes the free wait for it.
#include "races/scenario.hpp"

namespace slip::races::program_019 {

void program(Setting& s) {
  Buffer data = s.a.alloc(kBytes, "data");
  const Range kept = data;
  s.b.wait(s.a.record());
  work(s.b, "early", {kept}, {});
  s.a.wait(s.b.record());
  work(s.b, "late", {kept}, {});
  s.a.free(std::move(data));
}

const InCorpus kThis({19, "use after a stream ordered free", program, "late", "stream-ordered free"});

}  // namespace slip::races::program_019
