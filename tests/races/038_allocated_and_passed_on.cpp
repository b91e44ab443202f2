#include "races/scenario.hpp"

namespace slip::races::program_038 {

void program(Setting& s) {
  const Buffer data = s.a.alloc(kBytes, "data");
  s.b.wait(s.a.record());
  work(s.b, "user", {}, {data});
  s.a.wait(s.b.record());
}

const InCorpus kThis({38, "allocated and passed on", program});

}  // namespace slip::races::program_038
