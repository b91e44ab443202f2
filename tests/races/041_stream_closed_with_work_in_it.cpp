#include "races/scenario.hpp"

namespace slip::races::program_041 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  {
    const Stream brief = s.device.stream(StreamFlags::kNonBlocking);
    work(brief, "writer", {}, {data});
  }  // closing a stream waits for nothing
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({41, "stream closed with work in it", program, "writer", "reader"});

}  // namespace slip::races::program_041
