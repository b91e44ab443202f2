// Non-blocking streams and the legacy stream do not order each other.
#include "races/scenario.hpp"

namespace slip::races::program_021 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "writer", {}, {data});
  work(s.device.legacy_stream(), "barrier", {}, {});
  work(s.b, "reader", {data}, {});
}

const InCorpus kThis({21, "legacy barrier does not reach these", program, "writer", "reader"});

}  // namespace slip::races::program_021
