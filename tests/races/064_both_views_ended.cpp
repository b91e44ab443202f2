#include "races/scenario.hpp"

namespace slip::races::program_064 {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  Buffer source = s.pinned("source");
  {
    const auto whole = source.host_write<float>();
    const HostView<float> part(source.slice(0, 64), Here::at());
  }
  work(s.a, "upload", {source}, {data});
}

const InCorpus kThis({64, "both views ended", program});

}  // namespace slip::races::program_064
