// An op of the legacy stream comes after all that blocking streams did before (rule 3), also after an allocation.
#include "races/scenario.hpp"

namespace slip::races::program_068 {

// Opens and closes a stream, so that the next one is likely to reuse its slot.
void use_a_place(const Device& device) {
  {
    const Stream stream = device.stream();
    work(stream, "earlier", {}, {});
  }
  device.sync();
}

void program(Setting& s) {
  use_a_place(s.device);
  const Stream fresh = s.device.stream();
  const Buffer data = fresh.alloc(kBytes, "data");
  work(s.device.legacy_stream(), "user", {}, {data});
}

const InCorpus kThis({68, "allocated in a blocking stream", program});

}  // namespace slip::races::program_068
