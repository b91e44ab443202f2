#include "races/scenario.hpp"

namespace slip::races::program_022 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream one = s.device.stream(), two = s.device.stream();
  work(one, "writer", {}, {data});
  work(s.device.legacy_stream(), "barrier", {}, {});
  work(two, "reader", {data}, {});
  s.device.sync();
}

const InCorpus kThis({22, "legacy barrier between blocking streams", program});

}  // namespace slip::races::program_022
