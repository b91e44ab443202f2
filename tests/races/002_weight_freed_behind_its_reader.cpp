#include "races/scenario.hpp"

namespace slip::races::program_002 {

void program(Setting& s) {
  Buffer weight = s.a.alloc(kBytes, "weight");
  work(s.a, "load", {}, {weight});
  s.b.wait(s.a.record());
  work(s.b, "denoise", {weight}, {});
  s.a.wait(s.b.record());
  s.a.free(std::move(weight));
}

const InCorpus kThis({2, "weight freed behind its reader", program});

}  // namespace slip::races::program_002
