// The legacy stream does not wait for non-blocking streams, and so not for their allocations.
#include "races/scenario.hpp"

namespace slip::races::program_067 {

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
  const Stream fresh = s.device.stream(StreamFlags::kNonBlocking);
  const Buffer data = fresh.alloc(kBytes, "data");
  work(s.device.legacy_stream(), "user", {}, {data});
  fresh.wait(s.device.legacy_stream().record());
}

const InCorpus kThis({67, "allocated in a non-blocking stream", program, "stream-ordered allocation", "user"});

}  // namespace slip::races::program_067
