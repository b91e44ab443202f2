// Recursive doubling: in round i a rank exchanges its whole value with the rank whose position differs in bit i. There
// are as few rounds as possible, and each moves all data, so it suits small calls. The rounds need a power of two
// ranks. Each of the remaining ranks sends its value to a partner before the rounds and receives the result after them.
// Both ranks of a pair add in the same order, so all ranks get the same bits.
#include <bit>

#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

// The number of ranks that take part in the rounds: the largest power of two that is not above nranks.
int paired(const Task& task) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(task.nranks))); }
int rounds(const Task& task) { return std::countr_zero(static_cast<unsigned>(paired(task))); }

std::uint64_t one_piece(const Task&) { return 1; }

// Slot 0: the value before the rounds, if it is scaled or includes a remaining rank's value. Slot 1: that rank's value.
// Round i uses slot 2i + 2 for the sum and slot 2i + 3 for the value that it receives; the last sum goes to the output.
std::uint64_t doubling_scratch(const Task& task) {
  return 2 * (static_cast<std::uint64_t>(rounds(task)) + 1) * task.block();
}

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
    program.reduce(slot(0), value, slot(1), bytes, false);
    value = slot(0);
  }
  for (int round = 0; round <= last; ++round) {
    const int other = own ^ (1 << round), partner = task.at(other);
    const BufferLocation incoming = slot(2 * round + 3), sum = round == last ? output_at(0) : slot(2 * round + 2);
    program.send(partner, value, bytes);
    program.receive(partner, incoming, bytes);
    program.received(partner);
    if (round == last) {  // if the call is in place, reduce() below overwrites the input, so all sends must be done
      for (int past = 0; past <= last; ++past) program.sent(task.at(own ^ (1 << past)));
    }
    program.reduce(sum, own < other ? value : incoming, own < other ? incoming : value, bytes, round == last);
    value = sum;
  }
  if (own < extra) {
    program.send(task.at(own + paired(task)), output_at(0), bytes);
    program.sent(task.at(own + paired(task)));
  }
}

// Dissemination barrier: after round i a rank knows that 2^(i+1) - 1 others have joined.
void write_barrier(const Task& task, std::uint64_t, Program& program) {
  for (int distance = 1; distance < task.nranks; distance *= 2) {
    const int to = task.at(task.position() + distance), from = task.at(task.position() - distance);
    program.send(to, input_at(0), 0);
    program.receive(from, output_at(0), 0);
    program.received(from);
  }
  for (int distance = 1; distance < task.nranks; distance *= 2) program.sent(task.at(task.position() + distance));
}

}  // namespace

const ProgramWriter kDoublingAllReduce{write_all_reduce, doubling_scratch, one_piece};
const ProgramWriter kDoublingBarrier{write_barrier, doubling_scratch, one_piece};

}  // namespace slip::comm
