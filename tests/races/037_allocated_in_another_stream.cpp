// The address is known at once, but only work ordered after the allocation may use the memory.
#include "races/scenario.hpp"

namespace slip::races::program_037 {

void program(Setting& s) {
  const Buffer data = s.a.alloc(kBytes, "data");
  work(s.b, "user", {}, {data});
  s.a.wait(s.b.record());
}

const InCorpus kThis({37, "allocated in another stream", program, "stream-ordered allocation", "user"});

}  // namespace slip::races::program_037
