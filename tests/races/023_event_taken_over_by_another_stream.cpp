#include "races/scenario.hpp"

namespace slip::races::program_023 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream other = s.device.stream(StreamFlags::kNonBlocking);
  Event done;
  work(s.a, "writer", {}, {data});
  s.a.record(done);
  other.record(done);  // now it says nothing about the writer
  s.b.wait(done);
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({23, "event taken over by another stream", program, "writer", "reader"});

}  // namespace slip::races::program_023
