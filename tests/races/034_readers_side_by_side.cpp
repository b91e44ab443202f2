#include "races/scenario.hpp"

namespace slip::races::program_034 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream third = s.device.stream(StreamFlags::kNonBlocking);
  work(s.a, "first reader", {data}, {});
  work(s.b, "second reader", {data}, {});
  third.wait(s.a.record());
  third.wait(s.b.record());
  work(third, "writer", {}, {data});
}

const InCorpus kThis({34, "readers side by side", program});

}  // namespace slip::races::program_034
