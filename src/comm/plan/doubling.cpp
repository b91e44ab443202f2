// Recursive doubling: in round i a rank exchanges all that it has with the one whose number differs in bit i. The
// fewest rounds, and all data in each: for small calls. Ranks beyond a power of two give theirs to a partner first, and
// get the result last. Both of a pair add in the same order, so all get the same bits.
#include <bit>

#include "comm/plan/algorithm.hpp"

namespace slip::doubling {
namespace {

int paired(const Task& task) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(task.nranks))); }
int rounds(const Task& task) { return std::countr_zero(static_cast<unsigned>(paired(task))); }

}  // namespace

std::uint64_t pieces(const Task&) { return 1; }

// The value after each round, and what came in it.
std::uint64_t scratch(const Task& task) { return 2 * (static_cast<std::uint64_t>(rounds(task)) + 1) * task.block(); }

void write_all_reduce(const Task& task, std::uint64_t, Program& program) {
  const std::uint64_t bytes = task.block();
  const int own = task.position(), extra = task.nranks - paired(task), last = rounds(task) - 1;
  const auto slot = [&](int index) { return scratch_at(static_cast<std::uint64_t>(index) * bytes); };
  BufferLocation value = input_at(0);
  if (task.scales()) program.copy(slot(0), value, bytes);
  if (task.scales()) value = slot(0);
  if (own >= paired(task)) {
    const int partner = task.at(own - paired(task));
    program.send(partner, value, bytes);
    program.sent(partner);
    program.receive(partner, output_at(0), bytes);
    return program.received(partner);
  }
  if (own < extra) {
    const int partner = task.at(own + paired(task));
    program.receive(partner, slot(1), bytes);
    program.received(partner);
    const std::span<BufferLocation> from = program.reduce({slot(0)}, 2, bytes, false);
    from[0] = value;
    from[1] = slot(1);
    value = slot(0);
  }
  for (int round = 0; round <= last; ++round) {
    const int other = own ^ (1 << round), partner = task.at(other);
    const BufferLocation come = slot(2 * round + 3), made = round == last ? output_at(0) : slot(2 * round + 2);
    program.send(partner, value, bytes);
    program.receive(partner, come, bytes);
    program.received(partner);
    if (round == last) {  // the output may be what is still sent
      for (int past = 0; past <= last; ++past) program.sent(task.at(own ^ (1 << past)));
    }
    const std::span<BufferLocation> from = program.reduce({made}, 2, bytes, round == last);
    from[0] = own < other ? value : come;
    from[1] = own < other ? come : value;
    value = made;
  }
  if (own < extra) {
    program.send(task.at(own + paired(task)), output_at(0), bytes);
    program.sent(task.at(own + paired(task)));
  }
}

// Dissemination: after round i a rank knows of 2^(i+1) others that they have come.
void write_barrier(const Task& task, std::uint64_t, Program& program) {
  for (int distance = 1; distance < task.nranks; distance *= 2) {
    const int to = task.at(task.position() + distance), from = task.at(task.position() - distance);
    program.send(to, input_at(0), 0);
    program.receive(from, output_at(0), 0);
    program.received(from);
  }
  for (int distance = 1; distance < task.nranks; distance *= 2) program.sent(task.at(task.position() + distance));
}

}  // namespace slip::doubling
