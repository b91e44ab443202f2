#include "races/scenario.hpp"

namespace slip::races::program_032 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "writer", {}, {data});
  s.device.sync();
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({32, "sync of the device", program});

}  // namespace slip::races::program_032
