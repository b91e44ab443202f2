// Converts an Op into a PackedOp in the ring of a lane, and checks whether the waits of a packed op are satisfied.
// Inline, because submission is the hot path. Used by CpuBackend, Pool and Serial.
#pragma once

#include <new>
#include <span>

#include "backend/cpu/lane.hpp"
#include "runtime/backend.hpp"
#include "runtime/exchange.hpp"

namespace slip::backend {

// The 32-bit flag of a kWaitValue or kWriteValue.
inline std::atomic<std::uint32_t>& flag(PackedOp& op) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(pieces(op)->data);
}

// The number of cells of an op with that many waits. The first wait needs no extra space.
inline std::uint64_t cells_of(const Op& op, std::size_t waits = 0) {
  const std::size_t payload = (op.reads.size() + op.writes.size()) * sizeof(ArgBytes) +
                              op.scalars.size() * sizeof(Scalar) + (waits > 1 ? waits - 1 : 0) * sizeof(StreamPoint);
  return 1 + (payload + sizeof(Cell) - 1) / sizeof(Cell);
}

// Writes the op at `place`, to run after `waits`. Moves op.host and retains op.event.
inline void pack(const Op& op, std::uint64_t cells, std::span<const StreamPoint> waits, std::uint64_t number,
                 PackedOp& place) {
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
  packed.more_waits = static_cast<std::uint8_t>(waits.size() > 1 ? waits.size() - 1 : 0);
  packed.target = waits.empty() ? nullptr : static_cast<Lane*>(waits[0].stream);
  packed.number = waits.empty() ? number : waits[0].position;
  if (op.kind == OpKind::kHost) packed.host = new std::function<void()>(std::move(*op.host));
  if (op.kind == OpKind::kExchange) packed.exchange = op.exchange;
  if (op.kind == OpKind::kRecord) {
    packed.stamp = static_cast<runtime::Stamp*>(op.event);
    packed.stamp->retain();
  }
  ArgBytes* piece = pieces(packed);
  for (const Range& range : op.reads) new (piece++) ArgBytes{runtime::address(range), range.bytes};
  for (const Range& range : op.writes) new (piece++) ArgBytes{runtime::address(range), range.bytes};
  Scalar* scalar = scalar_list(packed);
  for (const Scalar& value : op.scalars) new (scalar++) Scalar(value);
  StreamPoint* more = more_list(packed);
  for (std::size_t i = 1; i < waits.size(); ++i) new (more++) StreamPoint(waits[i]);
}

// Returns the first point that the op waits for and that is not reached. If all are reached, the stream is null. This
// thread then sees everything done before the points: by the fence, or under ThreadSanitizer by the loads (kAcquire).
inline StreamPoint unreached_point(PackedOp& op) {
  if (!op.target) return {};
  if (op.target->done.load(base::kAcquire) < op.number) return {op.target, op.number};
  for (std::size_t i = 0; i < op.more_waits; ++i) {
    const StreamPoint& point = more_list(op)[i];
    if (static_cast<Lane*>(point.stream)->done.load(base::kAcquire) < point.position) return point;
  }
  base::acquire_fence();
  return {};
}
// Whether the flag of a kWaitValue has reached the value. acquire: sees everything done before the flag was set.
inline bool flag_reached(PackedOp& op) {
  return op.kind != OpKind::kWaitValue || runtime::ends_wait(base::load_acquire(flag(op)), op.value);
}

// Whether a lane that is parked on a flag or an exchange can continue.
inline bool can_continue(PackedOp& op) {
  return op.kind == OpKind::kExchange ? op.exchange->can_advance() : flag_reached(op);
}

}  // namespace slip::backend
