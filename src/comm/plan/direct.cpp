// The direct algorithm: each rank exchanges with all others at once. Each rank starts with its neighbours, so that not
// all ranks send to the same rank first. Values are reduced in the order of the ranks, so the result always has the
// same bits. gather and scatter always use this algorithm.
#include <algorithm>

#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

using Span = Task::Span;

// all_reduce cuts a chunk into slices; each rank reduces one.
Span slice_of(const Task& task, const Span& chunk, int rank) {
  const auto n = static_cast<std::uint64_t>(task.nranks);
  const std::uint64_t share = ((chunk.bytes + n - 1) / n + 63) / 64 * 64;
  const std::uint64_t begin = std::min(share * static_cast<std::uint64_t>(rank), chunk.bytes);
  return {chunk.begin + begin, std::min(share, chunk.bytes - begin)};
}

// Whether the rank `from` sends a block to the rank `to`.
bool sends_to(const Call& call, int from, int to) {
  if (call.kind == Collective::kGather) return to == call.root;
  return !has_root(call.kind) || from == call.root;
}

// given(): where the bytes that this rank sends to `rank` begin in its input. taken(): where the bytes that it receives
// from `rank` begin in its output.
BufferLocation given(const Task& task, int rank, std::uint64_t begin) {
  const bool blocks = task.call.kind == Collective::kAllToAll || task.call.kind == Collective::kScatter;
  return input_at((blocks ? static_cast<std::uint64_t>(rank) * task.block() : 0) + begin);
}
BufferLocation taken(const Task& task, int rank, std::uint64_t begin) {
  const bool blocks = task.call.kind != Collective::kBroadcast && task.call.kind != Collective::kScatter;
  return output_at((blocks ? static_cast<std::uint64_t>(rank) * task.block() : 0) + begin);
}

// Calls body(to, from) for each distance on the circle of ranks: the rank at this distance after this rank, and the
// rank at this distance before it.
void each_other(const Task& task, auto&& body) {
  for (int step = 1; step < task.nranks; ++step)
    body((task.rank + step) % task.nranks, (task.rank - step + task.nranks) % task.nranks);
}

// The scratch memory for the chunk received from a rank.
BufferLocation incoming(const Task& task, int rank) {
  return scratch_at(static_cast<std::uint64_t>(rank) * task.chunk_bytes);
}

void reduce_own(const Task& task, BufferLocation to, const Span& own, Program& program) {
  if (own.bytes == 0) return;
  const std::span<BufferLocation> places = program.reduce(1, task.nranks, own.bytes);
  places[0] = to;
  for (int rank = 0; rank < task.nranks; ++rank)
    places[1 + static_cast<std::size_t>(rank)] = rank == task.rank ? input_at(own.begin) : incoming(task, rank);
}

// The location of the values that this rank sends to another rank. In a kPreMulSum this rank first multiplies its input
// by its factor, into scratch memory (one chunk for each rank): the receiver does not know the factor.
BufferLocation scaled(const Task& task, int rank, const Span& part, Program& program) {
  if (!task.scales()) return input_at(part.begin);
  const BufferLocation there = scratch_at(static_cast<std::uint64_t>(task.nranks + rank) * task.chunk_bytes);
  program.copy(there, input_at(part.begin), part.bytes);
  return there;
}

std::uint64_t direct_scratch(const Task& task) {
  const auto n = static_cast<std::uint64_t>(task.nranks);
  if (task.call.kind == Collective::kAllToAll) return task.in_place ? n * task.chunk_bytes : 0;
  return reduces(task.call.kind) ? (task.scales() ? 2 * n : n) * task.chunk_bytes : 0;
}

void write_copies(const Task& task, std::uint64_t piece, Program& program) {
  const Span chunk = task.chunk(piece);
  // In an all_to_all in place, a received block would overwrite input that is still being sent. So this rank receives
  // blocks in scratch memory and copies them to the output when all sends are done.
  const bool by_scratch = task.call.kind == Collective::kAllToAll && task.in_place;
  const auto gives_to = [&](int rank) { return sends_to(task.call, task.rank, rank); };
  const auto takes_from = [&](int rank) { return sends_to(task.call, rank, task.rank); };
  each_other(task, [&](int to, int from) {
    if (gives_to(to)) program.send(to, given(task, to, chunk.begin), chunk.bytes);
    const BufferLocation there = by_scratch ? incoming(task, from) : taken(task, from, chunk.begin);
    if (takes_from(from)) program.receive(from, there, chunk.bytes);
  });
  if (gives_to(task.rank) && !task.in_place)
    program.copy(taken(task, task.rank, chunk.begin), given(task, task.rank, chunk.begin), chunk.bytes);
  // Without scratch memory, messages of this chunk may be under way while the next chunk begins.
  const std::uint64_t left = by_scratch || piece + 1 == task.chunks() ? 0 : 1;
  each_other(task, [&](int to, int from) {
    if (takes_from(from)) program.received(from, left);
    if (gives_to(to)) program.sent(to, left);
  });
  each_other(task, [&](int, int from) {
    if (by_scratch) program.copy(taken(task, from, chunk.begin), incoming(task, from), chunk.bytes);
  });
}

void write_reductions(const Task& task, std::uint64_t piece, Program& program) {
  const Span chunk = task.chunk(piece);
  const Collective kind = task.call.kind;
  const auto wanted = [&](int rank) -> Span {  // the part of the input that `rank` reduces
    if (kind == Collective::kReduce) return rank == task.call.root ? chunk : Span{};
    if (kind == Collective::kReduceScatter)
      return {static_cast<std::uint64_t>(rank) * task.block() + chunk.begin, chunk.bytes};
    return slice_of(task, chunk, rank);
  };
  const Span own = wanted(task.rank);
  const auto all_sent = [&] {  // in a reduce, ranks send to the root only
    each_other(task, [&](int to, int) {
      if (kind != Collective::kReduce || to == task.call.root) program.sent(to);
    });
  };
  if (piece > 0 && task.scales()) all_sent();
  each_other(task, [&](int to, int from) {
    const Span part = wanted(to);
    if (part.bytes > 0) program.send(to, scaled(task, to, part, program), part.bytes);
    if (own.bytes > 0) program.receive(from, incoming(task, from), own.bytes);
  });
  if (own.bytes > 0) each_other(task, [&](int, int from) { program.received(from); });
  reduce_own(task, output_at(kind == Collective::kAllReduce ? own.begin : chunk.begin), own, program);
  if (kind == Collective::kAllReduce) {
    if (task.in_place && !task.scales()) all_sent();  // the received results overwrite the input
    each_other(task, [&](int to, int from) {
      if (own.bytes > 0) program.send(to, output_at(own.begin), own.bytes);
      const Span part = wanted(from);
      if (part.bytes > 0) program.receive(from, output_at(part.begin), part.bytes);
    });
    // These messages may be under way while the next chunk begins: the waits of that chunk cover them.
    if (piece + 1 == task.chunks()) each_other(task, [&](int, int from) { program.received(from); });
  }
  if (piece + 1 == task.chunks()) all_sent();
}

}  // namespace

const ProgramWriter kDirectCopies{write_copies, direct_scratch};
const ProgramWriter kDirectReductions{write_reductions, direct_scratch};

}  // namespace slip::comm
