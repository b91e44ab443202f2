#include "races/scenario.hpp"

namespace slip::races::program_050 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream between = s.device.stream(StreamFlags::kNonBlocking);
  work(s.a, "writer", {}, {data});
  between.wait(s.a.record());
  s.b.wait(between.record());
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({50, "record after the wait in a new stream", program});

}  // namespace slip::races::program_050
