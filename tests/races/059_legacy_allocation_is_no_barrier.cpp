// An allocation in the legacy stream does not order the blocking streams (rule 8 as seen on an H200).
#include "races/scenario.hpp"

namespace slip::races::program_059 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream one = s.device.stream(), two = s.device.stream();
  work(one, "writer", {}, {data});
  const Buffer memory = s.device.legacy_stream().alloc(kBytes, "memory");
  work(two, "reader", {data}, {});
}

const InCorpus kThis({59, "legacy allocation is no barrier", program, "writer", "reader", 1, false});

}  // namespace slip::races::program_059
