// The ring algorithm: each rank receives from the previous rank of the ring and sends what it has received or reduced
// to the next. A loop moves one slice for each rank round the ring (twice for all_reduce: once to reduce, once to
// gather). A slice goes in parts, so that one part is on its way while the previous one is being reduced.
//
// Collectives with a root use the ring as a chain that starts or ends at the root.
#include <algorithm>

#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

// A slice has at most kMaxParts parts. The cache line and the smallest part are in bytes.
constexpr std::uint64_t kCacheLine = 64, kMaxParts = 4, kMinPart = 16 << 10;

using Span = Task::Span;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t grain) { return (bytes + grain - 1) / grain * grain; }

bool by_blocks(const Task& task) { return task.call.kind != Collective::kAllReduce; }

// The slice whose result the rank at this position gets, or which it contributes to an all_gather.
Span slice_of(const Task& task, std::uint64_t loop, int position) {
  const auto n = static_cast<std::uint64_t>(task.nranks);
  if (by_blocks(task)) {
    const Span part = task.chunk(loop);
    return {static_cast<std::uint64_t>(task.at(position)) * task.block() + part.begin, part.bytes};
  }
  const std::uint64_t begin = task.share().begin + loop * n * task.chunk_bytes;
  const std::uint64_t end = std::min(begin + n * task.chunk_bytes, task.share().end());
  const std::uint64_t share = round_up((end - begin + n - 1) / n, kCacheLine);
  const std::uint64_t from = std::min(begin + share * task.wrapped(position), end);
  return {from, std::min(share, end - from)};
}

void each_part(std::uint64_t bytes, auto&& body) {
  const std::uint64_t part = std::max(round_up((bytes + kMaxParts - 1) / kMaxParts, kCacheLine), kMinPart);
  for (std::uint64_t offset = 0; offset < bytes; offset += part) body(offset, std::min(part, bytes - offset));
}

class Loop {
 public:
  Loop(const Task& task, std::uint64_t loop, Program& program)
      : task_(task),
        program_(program),
        loop_(loop),
        position_(task.position()),
        next_(task.next()),
        previous_(task.previous()),
        sent_(static_cast<std::size_t>(task.nranks)) {}

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
      receive(scratch_at(0), slice.bytes, [&](std::uint64_t offset, std::uint64_t bytes) {
        program_.reduce(to + offset, scratch_at(offset), input_at(slice.begin + offset), bytes, last);
        if (goes_on) send(to + offset, bytes);
      });
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
      receive(output_at(slice.begin), slice.bytes, [&](std::uint64_t offset, std::uint64_t bytes) {
        if (step + 2 < task_.nranks) send(output_at(slice.begin + offset), bytes);
      });
    }
  }

 private:
  void send(BufferLocation from, std::uint64_t bytes) {
    program_.send(next_, from, bytes);
    ++begun_;
  }
  void send_all(BufferLocation from, std::uint64_t bytes) {
    each_part(bytes, [&](std::uint64_t offset, std::uint64_t part) { send(from + offset, part); });
  }
  // `then` writes the steps for each part, after the step that waits for it.
  void receive(BufferLocation to, std::uint64_t bytes, auto&& then) {
    std::uint64_t left = 0;
    each_part(bytes, [&](std::uint64_t offset, std::uint64_t part) {
      program_.receive(previous_, to + offset, part);
      ++left;
    });
    each_part(bytes, [&](std::uint64_t offset, std::uint64_t part) {
      program_.received(previous_, --left);
      then(offset, part);
    });
  }
  // Records that the sends of all parts of the slice have begun.
  void note_sent(int position) { sent_[task_.wrapped(position)] = begun_; }
  // The number of sends that began after those of the slice.
  std::uint64_t begun_since(int position) const { return begun_ - sent_[task_.wrapped(position)]; }

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

std::uint64_t loops(const Task& task) {
  if (by_blocks(task)) return task.chunks();
  const std::uint64_t loop = task.chunk_bytes * static_cast<std::uint64_t>(task.nranks);
  return (task.share().bytes + loop - 1) / loop;
}

void write_loop(const Task& task, std::uint64_t loop, Program& program) {
  // The previous loop may still be sending partial sums from the scratch memory that this loop overwrites.
  if (loop > 0 && task.call.kind == Collective::kReduceScatter) program.sent(task.next());
  Loop one(task, loop, program);
  if (reduces(task.call.kind)) one.reduce_scatter();
  if (task.call.kind != Collective::kReduceScatter) one.all_gather(task.call.kind == Collective::kAllReduce);
  if (loop + 1 == loops(task)) program.sent(task.next());
}

std::uint64_t loop_scratch(const Task& task) {
  return task.chunk_bytes * (task.call.kind == Collective::kReduceScatter ? 3 : 1);
}

// Receives the chunk of this piece, and begins to receive the next one. `to`: returns where a chunk goes.
void receive_chunk(const Task& task, std::uint64_t piece, Program& program, auto&& to) {
  const bool last = piece + 1 == task.chunks();
  if (piece == 0) program.receive(task.previous(), to(piece), task.chunk(piece).bytes);
  if (!last) program.receive(task.previous(), to(piece + 1), task.chunk(piece + 1).bytes);
  program.received(task.previous(), last ? 0 : 1);
}

void write_broadcast(const Task& task, std::uint64_t piece, Program& program) {
  const bool is_root = task.is_root(), sends = task.next() != task.call.root;
  const auto there = [&](std::uint64_t index) { return output_at(task.chunk(index).begin); };
  const Span chunk = task.chunk(piece);
  if (!is_root) receive_chunk(task, piece, program, there);
  const BufferLocation from = is_root ? input_at(chunk.begin) : there(piece);
  if (sends) program.send(task.next(), from, chunk.bytes);
  if (is_root && !task.in_place) program.copy(there(piece), from, chunk.bytes);
  if (sends && piece + 1 == task.chunks()) program.sent(task.next());
}

void write_reduce(const Task& task, std::uint64_t piece, Program& program) {
  const bool is_root = task.is_root(), is_first = task.previous() == task.call.root;
  const Span chunk = task.chunk(piece);
  const BufferLocation input = input_at(chunk.begin), sum = scratch_at(task.chunk_bytes * (piece % 2));
  const auto incoming = [&](std::uint64_t index) { return scratch_at(task.chunk_bytes * (2 + index % 2)); };
  const bool sends_sum = !is_root && (!is_first || task.scales());
  if (!is_first) receive_chunk(task, piece, program, incoming);
  if (sends_sum && piece >= 2) program.sent(task.next(), 1);
  if (!is_first) program.reduce(is_root ? output_at(chunk.begin) : sum, incoming(piece), input, chunk.bytes, is_root);
  else if (sends_sum) program.copy(sum, input, chunk.bytes);
  if (is_root) return;
  program.send(task.next(), sends_sum ? sum : input, chunk.bytes);
  if (piece + 1 == task.chunks()) program.sent(task.next());
}

}  // namespace

const ProgramWriter kRingLoops{write_loop, loop_scratch, loops};
const ProgramWriter kRingBroadcast{write_broadcast};
const ProgramWriter kRingReduce{write_reduce, [](const Task& task) { return 4 * task.chunk_bytes; }};

}  // namespace slip::comm
