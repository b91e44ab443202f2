#include "races/scenario.hpp"

namespace slip::races::program_043 {

void program(Setting& s) {
  const Buffer bucket = s.memory("bucket");
  for (std::size_t k = 0; k < 4; ++k) {
    work(s.a, "backward", {}, {bucket.slice(k * 1024, 1024)});
    if (k == 2) s.b.wait(s.a.record());  // one gradient too early
  }
  work(s.b, "reduce", {bucket}, {bucket});
}

const InCorpus kThis({43, "gradient reduced before it is whole", program, "backward", "reduce"});

}  // namespace slip::races::program_043
