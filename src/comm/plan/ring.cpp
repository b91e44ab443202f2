// The ring algorithm: each rank receives from the previous rank of the ring and sends what it has received or reduced
// to the next. A loop moves one slice for each rank round the ring (twice for all_reduce: once to reduce, once to
// gather). A slice goes in parts, so that one part is on its way while the previous one is being reduced.
//
// Collectives with a root use the ring as a chain that starts or ends at the root.
#include <algorithm>

#include "comm/plan/algorithm.hpp"

namespace slip::ring {
namespace {

// A slice has at most kParts parts. The cache line and the smallest part are in bytes.
constexpr std::uint64_t kLine = 64, kParts = 4, kMinPart = 16 << 10;

using Span = Task::Span;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t grain) { return (bytes + grain - 1) / grain * grain; }

bool by_blocks(const Task& task) { return task.call.kind != Collective::kAllReduce; }

// The slice whose result the rank at this position gets, or which it contributes to an all_gather.
Span slice_of(const Task& task, std::uint64_t loop, int position) {
  const auto n = static_cast<std::uint64_t>(task.nranks);
  const int rank = task.at(position);
  if (by_blocks(task)) {
    const Span part = task.chunk(loop);
    return {static_cast<std::uint64_t>(rank) * task.block() + part.begin, part.bytes};
  }
  const std::uint64_t begin = task.share().begin + loop * n * task.chunk_bytes;
  const std::uint64_t end = std::min(begin + n * task.chunk_bytes, task.share().end());
  const std::uint64_t share = round_up((end - begin + n - 1) / n, kLine);
  const std::uint64_t from =
      std::min(begin + share * static_cast<std::uint64_t>((position % task.nranks + task.nranks) % task.nranks), end);
  return {from, std::min(share, end - from)};
}

std::uint64_t part_bytes(std::uint64_t bytes) {
  return std::max(round_up((bytes + kParts - 1) / kParts, kLine), kMinPart);
}
std::uint64_t parts_of(std::uint64_t bytes) { return (bytes + part_bytes(bytes) - 1) / part_bytes(bytes); }

class Loop {
 public:
  Loop(const Task& task, std::uint64_t loop, Program& program)
      : task_(task),
        program_(program),
        loop_(loop),
        position_(task.position()),
        next_(task.at(position_ + 1)),
        previous_(task.at(position_ - 1)) {}

  void reduce_scatter() {
    const Span first = slice_of(task_, loop_, position_ - 1);
    const bool first_from_input = !task_.scales();
    if (!first_from_input) program_.copy(partial(first, 0), input_at(first.begin), first.bytes);
    send_all(first_from_input ? input_at(first.begin) : partial(first, 0), first.bytes);
    note_sent(position_ - 1);
    for (int step = 0; step + 1 < task_.nranks; ++step) {
      const int position = position_ - 2 - step;
      const Span slice = slice_of(task_, loop_, position);
      const bool last = step + 2 == task_.nranks;
      const bool goes_on = !last || task_.call.kind == Collective::kAllReduce;
      if (!last && by_blocks(task_) && step + 1 >= 2) program_.sent(next_, begun_since(position + 2));
      const BufferLocation to =
          last && by_blocks(task_) ? output_at(task_.chunk(loop_).begin) : partial(slice, step + 1);
      const std::uint64_t part = part_bytes(slice.bytes);
      const std::uint64_t count = parts_of(slice.bytes);
      for (std::uint64_t i = 0; i < count; ++i)
        program_.receive(previous_, scratch_at(i * part), std::min(part, slice.bytes - i * part));
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t bytes = std::min(part, slice.bytes - i * part);
        program_.received(previous_, count - 1 - i);
        BufferLocation there = to;
        there.offset += i * part;
        const std::span<BufferLocation> from = program_.reduce({there}, 2, bytes, last);
        from[0] = scratch_at(i * part);
        from[1] = input_at(slice.begin + i * part);
        if (goes_on) send(there, bytes);
      }
      if (goes_on) note_sent(position);
    }
  }

  // `sent`: reduce_scatter() has already sent this rank's own slice.
  void all_gather(bool sent) {
    if (!sent) {
      const Span own = slice_of(task_, loop_, position_);
      const BufferLocation from = input_at(task_.chunk(loop_).begin);
      if (!task_.in_place) program_.copy(output_at(own.begin), from, own.bytes);
      send_all(from, own.bytes);
      note_sent(position_);
    }
    for (int step = 0; step + 1 < task_.nranks; ++step) {
      const int position = position_ - 1 - step;
      const Span slice = slice_of(task_, loop_, position);
      // The received slice overwrites a partial sum or input that this rank has sent, so those sends must be done.
      if (sent) program_.sent(next_, begun_since(position));
      const std::uint64_t part = part_bytes(slice.bytes), count = parts_of(slice.bytes);
      for (std::uint64_t i = 0; i < count; ++i)
        program_.receive(previous_, output_at(slice.begin + i * part), std::min(part, slice.bytes - i * part));
      for (std::uint64_t i = 0; i < count; ++i) {
        program_.received(previous_, count - 1 - i);
        if (step + 2 < task_.nranks) send(output_at(slice.begin + i * part), std::min(part, slice.bytes - i * part));
      }
    }
  }

 private:
  void send(BufferLocation from, std::uint64_t bytes) {
    program_.send(next_, from, bytes);
    ++begun_;
  }
  void send_all(BufferLocation from, std::uint64_t bytes) {
    const std::uint64_t part = part_bytes(bytes);
    for (std::uint64_t done = 0; done < bytes; done += part) {
      send(from, std::min(part, bytes - done));
      from.offset += part;
    }
  }
  std::size_t index(int position) const {
    return static_cast<std::size_t>((position % task_.nranks + task_.nranks) % task_.nranks);
  }
  // Records that the sends of all parts of the slice have begun.
  void note_sent(int position) {
    sent_.resize(static_cast<std::size_t>(task_.nranks));
    sent_[index(position)] = begun_;
  }
  // The number of sends that began after those of the slice.
  std::uint64_t begun_since(int position) const { return begun_ - sent_[index(position)]; }

  // Where a partial sum of the slice is kept: in the output if it has room for all slices, else in scratch memory.
  BufferLocation partial(const Span& slice, int step) const {
    if (!by_blocks(task_)) return output_at(slice.begin);
    return scratch_at(task_.chunk_bytes * static_cast<std::uint64_t>(1 + step % 2));
  }

  const Task& task_;
  Program& program_;
  const std::uint64_t loop_;
  const int position_, next_, previous_;
  std::uint64_t begun_ = 0;          // sends of this loop
  std::vector<std::uint64_t> sent_;  // by position of the slice: the value of begun_ after its last part
};

}  // namespace

std::uint64_t loops(const Task& task) {
  if (by_blocks(task)) return task.chunks();
  const std::uint64_t loop = task.chunk_bytes * static_cast<std::uint64_t>(task.nranks);
  return (task.share().bytes + loop - 1) / loop;
}

void write_loop(const Task& task, std::uint64_t loop, Program& program) {
  const int next = task.at(task.position() + 1);
  // The previous loop may still be sending partial sums from the scratch memory that this loop overwrites.
  if (loop > 0 && task.call.kind == Collective::kReduceScatter) program.sent(next);
  Loop one(task, loop, program);
  if (reduces(task.call.kind)) one.reduce_scatter();
  if (task.call.kind != Collective::kReduceScatter) one.all_gather(task.call.kind == Collective::kAllReduce);
  if (loop + 1 == loops(task)) program.sent(next);
}

std::uint64_t loop_scratch(const Task& task) {
  return task.chunk_bytes * (task.call.kind == Collective::kReduceScatter ? 3 : 1);
}

std::uint64_t chain_pieces(const Task& task) { return task.chunks(); }
std::uint64_t chain_scratch(const Task& task) {
  return task.call.kind == Collective::kReduce ? 4 * task.chunk_bytes : 0;
}

void write_broadcast(const Task& task, std::uint64_t piece, Program& program) {
  const int root = task.graph->position[static_cast<std::size_t>(task.call.root)];
  const int distance = (task.position() - root + task.nranks) % task.nranks;
  const int next = task.at(task.position() + 1), previous = task.at(task.position() - 1);
  const bool last = piece + 1 == task.chunks(), sends = distance + 1 < task.nranks;
  const Span chunk = task.chunk(piece);
  if (distance > 0) {
    if (piece == 0) program.receive(previous, output_at(chunk.begin), chunk.bytes);
    if (!last) program.receive(previous, output_at(task.chunk(piece + 1).begin), task.chunk(piece + 1).bytes);
    program.received(previous, last ? 0 : 1);
  }
  const BufferLocation from = distance == 0 ? input_at(chunk.begin) : output_at(chunk.begin);
  if (sends) program.send(next, from, chunk.bytes);
  if (distance == 0 && !task.in_place) program.copy(output_at(chunk.begin), from, chunk.bytes);
  if (sends && last) program.sent(next);
}

void write_reduce(const Task& task, std::uint64_t piece, Program& program) {
  const int root = task.graph->position[static_cast<std::size_t>(task.call.root)];
  const int distance = (root - task.position() + task.nranks) % task.nranks;  // hops to the root
  const int next = task.at(task.position() + 1), previous = task.at(task.position() - 1);
  const bool first = distance + 1 == task.nranks, last = piece + 1 == task.chunks();
  const Span chunk = task.chunk(piece);
  const std::uint64_t half = piece % 2;
  const BufferLocation sum = scratch_at(task.chunk_bytes * half);
  const auto incoming = [&](std::uint64_t index) { return scratch_at(task.chunk_bytes * (2 + index % 2)); };
  if (first) {
    if (task.scales()) {
      if (piece >= 2) program.sent(next, 1);
      program.copy(sum, input_at(chunk.begin), chunk.bytes);
    }
    program.send(next, task.scales() ? sum : input_at(chunk.begin), chunk.bytes);
  } else {
    if (piece == 0) program.receive(previous, incoming(0), chunk.bytes);
    if (!last) program.receive(previous, incoming(piece + 1), task.chunk(piece + 1).bytes);
    program.received(previous, last ? 0 : 1);
    if (distance > 0 && piece >= 2) program.sent(next, 1);
    const std::span<BufferLocation> from =
        program.reduce({distance == 0 ? output_at(chunk.begin) : sum}, 2, chunk.bytes, distance == 0);
    from[0] = incoming(piece);
    from[1] = input_at(chunk.begin);
    if (distance > 0) program.send(next, sum, chunk.bytes);
  }
  if (distance > 0 && last) program.sent(next);
}

}  // namespace slip::ring
