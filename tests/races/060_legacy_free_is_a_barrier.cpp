#include "races/scenario.hpp"

namespace slip::races::program_060 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  const Stream one = s.device.stream(), two = s.device.stream();
  Buffer memory = s.device.legacy_stream().alloc(kBytes, "memory");
  work(one, "writer", {}, {data});
  s.device.legacy_stream().free(std::move(memory));
  work(two, "reader", {data}, {});
}

const InCorpus kThis({60, "legacy free is a barrier", program});

}  // namespace slip::races::program_060
