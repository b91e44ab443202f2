#include "races/scenario.hpp"

namespace slip::races::program_020 {

void program(Setting& s) {
  Buffer data = s.a.alloc(kBytes, "data");
  const Range kept = data;
  s.b.wait(s.a.record());
  work(s.b, "early", {kept}, {});
  work(s.b, "late", {kept}, {});
  s.a.wait(s.b.record());
  s.a.free(std::move(data));
}

const InCorpus kThis({20, "use before a stream ordered free", program});

}  // namespace slip::races::program_020
