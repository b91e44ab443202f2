// Ops in the ring: how an Op becomes a PackedOp, and when a packed wait is satisfied. Inline: this is the submission
// path.
#pragma once

#include <new>

#include "backend/cpu/lane.hpp"
#include "runtime/exchange.hpp"

namespace slip {

// The word of a kWaitValue or kWriteValue.
inline std::atomic<std::uint32_t>& word(PackedOp& op) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(op.pieces()->data);
}

// Cells that the op takes in a ring.
inline std::uint64_t cells_of(const Op& op) {
  const std::size_t payload = (op.reads.size() + op.writes.size()) * sizeof(Piece) + op.scalars.size() * sizeof(Scalar);
  return 1 + (payload + sizeof(Cell) - 1) / sizeof(Cell);
}

// Writes the op at `place`, to run after `wait` (stream null: at once). Takes over what op.host and op.event refer to.
inline void pack(const Op& op, std::uint64_t cells, Point wait, std::uint64_t number, PackedOp& place) {
  PackedOp& packed = *new (&place) PackedOp;
  packed.kind = op.kind;
  packed.engine = op.engine;
  packed.opaque = op.opaque;
  packed.padding = false;
  packed.value = op.value;
  packed.cells = static_cast<std::uint16_t>(cells);
  packed.reads = static_cast<std::uint16_t>(op.reads.size());
  packed.writes = static_cast<std::uint16_t>(op.writes.size());
  packed.scalars = static_cast<std::uint16_t>(op.scalars.size());
  packed.name = op.name;
  packed.file = op.here.file;
  packed.line = op.here.line;
  packed.barrier = op.kind == OpKind::kWait && (op.opaque || op.name);
  packed.kernel = op.kernel;
  packed.target = static_cast<Lane*>(wait.stream);
  packed.number = wait.stream ? wait.position : number;
  if (op.kind == OpKind::kHost) packed.host = new std::function<void()>(std::move(*op.host));
  if (op.kind == OpKind::kExchange) packed.exchange = op.exchange;
  if (op.kind == OpKind::kRecord) {
    packed.stamp = static_cast<Stamp*>(op.event);
    packed.stamp->retain();
  }
  Piece* piece = packed.pieces();
  for (const Range& range : op.reads) new (piece++) Piece{address(range), range.bytes};
  for (const Range& range : op.writes) new (piece++) Piece{address(range), range.bytes};
  Scalar* scalar = packed.scalar_list();
  for (const Scalar& value : op.scalars) new (scalar++) Scalar(value);
}

// Whether the point that the op waits for, if any, is reached. acquire: what was done before the point is then visible.
inline bool point_reached(const PackedOp& op) { return !op.target || load_acquire(op.target->done) >= op.number; }
// Whether the word of a kWaitValue has come. acquire: so is what was done before the word was set.
inline bool word_reached(PackedOp& op) { return op.kind != OpKind::kWaitValue || load_acquire(word(op)) >= op.value; }

// Whether a lane that is parked for its op's word or exchange can go on.
inline bool can_go_on(PackedOp& op) {
  return op.kind == OpKind::kExchange ? op.exchange->can_advance() : word_reached(op);
}

}  // namespace slip
