// Two buffers wrap the same memory.
#include "races/scenario.hpp"

namespace slip::races::program_061 {

alignas(64) std::byte g_memory[2 * kBytes];

void program(Setting& s) {
  const Buffer one = s.device.wrap(g_memory, kBytes, MemoryKind::kPinned, "one");
  const Buffer two = s.device.wrap(g_memory + kBytes / 2, kBytes, MemoryKind::kPinned, "two");
  work(s.a, "writer", {}, {one});
  work(s.b, "reader", {two}, {});
}

const InCorpus kThis({61, "same bytes wrapped twice", program, "writer", "reader"});

}  // namespace slip::races::program_061
