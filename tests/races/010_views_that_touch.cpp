#include "races/scenario.hpp"

namespace slip::races {
namespace {

void program(Setting& s) {
  const Buffer data = s.memory("data");
  work(s.a, "left", {}, {data.slice(0, 1024)});
  work(s.b, "right", {}, {data.slice(1024, 1024)});
}

const InCorpus kThis({10, "views that touch", program});

}  // namespace
}  // namespace slip::races
