#include "races/scenario.hpp"

namespace slip::races::program_033 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream third = s.device.stream(StreamFlags::kNonBlocking);
  work(s.a, "first reader", {data}, {});
  work(s.b, "second reader", {data}, {});
  third.wait(s.a.record());
  work(third, "writer", {}, {data});
}

const InCorpus kThis({33, "writer waits for one of two readers", program, "second reader", "writer"});

}  // namespace slip::races::program_033
