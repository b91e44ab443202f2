#include "races/scenario.hpp"

namespace slip::races::program_044 {

void program(Setting& s) {
  const Buffer buckets = s.memory("buckets");
  Event reduced;
  for (std::size_t k = 0; k < 4; ++k) {
    const Range bucket = buckets.slice(k * 1024, 1024);
    work(s.a, "backward", {}, {bucket});
    s.b.wait(s.a.record());
    work(s.b, "reduce", {bucket}, {bucket});
  }
  s.b.record(reduced);
  s.a.wait(reduced);
  work(s.a, "optimizer", {buckets}, {});
}

const InCorpus kThis({44, "gradients reduced behind backward", program});

}  // namespace slip::races::program_044
