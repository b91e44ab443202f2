#include "backend/cpu/lane.hpp"

#include <fmt/format.h>

#include <cstring>

#include "backend/cpu/pack.hpp"
#include "backend/cpu/strict.hpp"
#include "base/clock.hpp"
#include "runtime/observers.hpp"

namespace slip::backend {
namespace {

std::span<const ArgBytes> pieces(PackedOp& op, std::size_t first, std::size_t count) {
  return {pieces(op) + first, count};
}

// Called in a handler: the exception that an op threw becomes the failure of the stream or the device.
void keep_exception(Lane& lane, OpKind kind, Name name, Here here, std::uint64_t position) {
  const auto failure = [&](ErrorCode code, const char* why) {
    return runtime::op_failure(code, kind, name, here, why, position);
  };
  try {
    throw;
  } catch (const DeviceFault& fault) {
    lane.core->fault.put(failure(ErrorCode::kDeviceFault, fault.what()));
    runtime::fail_stream(lane, failure(ErrorCode::kDeviceFault, fault.what()));
  } catch (const Error& error) {
    const bool kept = error.code() == ErrorCode::kUndeclaredAccess || kind == OpKind::kExchange;
    runtime::fail_stream(lane, failure(kept ? error.code() : ErrorCode::kLaunchFailed, error.what()));
  } catch (const std::exception& error) {
    runtime::fail_stream(lane, failure(ErrorCode::kLaunchFailed, error.what()));
  } catch (...) {
    runtime::fail_stream(lane, failure(ErrorCode::kLaunchFailed, "not a std::exception"));
  }
}

void perform(Lane& lane, PackedOp& op, std::uint64_t position) {
  try {
    const runtime::InsideOp inside;
    const StrictScope strict(lane, op);
    switch (op.kind) {
      case OpKind::kKernel: {
        const Args args(pieces(op, 0, op.reads), pieces(op, op.reads, op.writes), {scalar_list(op), op.scalars});
        strict.call([&] { op.kernel->cpu(args); });
        break;
      }
      case OpKind::kCopy:
        if (pieces(op)[0].bytes > 0) std::memcpy(pieces(op)[1].data, pieces(op)[0].data, pieces(op)[0].bytes);
        break;
      case OpKind::kFill: std::memset(pieces(op)[0].data, static_cast<int>(op.value), pieces(op)[0].bytes); break;
      case OpKind::kHost: (*op.host)(); break;
      case OpKind::kExchange: op.exchange->finish(nullptr); break;
      // release: a thread that sees the flag sees what this stream wrote before.
      case OpKind::kWriteValue: flag(op).store(op.value, std::memory_order_release); break;
      default: break;
    }
  } catch (...) {
    keep_exception(lane, op.kind, op.name, here(op), position);
  }
}

void inherit_failure(Lane& lane, const runtime::StreamState& target, std::uint64_t reached, std::uint64_t position) {
  if (!target.failure.set()) [[likely]]
    return;
  const runtime::Failure cause = target.failure.value();
  if (cause.position > reached) return;
  runtime::fail_stream(
      lane, {cause.code, fmt::format("{} (through a wait for {})", cause.text, runtime::stream_text(target)), position,
             cause.here});
}

// A stream that waits for work of a failed stream fails, too: its data was not produced.
void inherit_failures(Lane& lane, PackedOp& op, std::uint64_t position) {
  if (op.barrier) return;  // implicit: it orders the streams, but does not propagate failures
  inherit_failure(lane, *op.target, op.number, position);
  for (std::size_t i = 0; i < op.more_waits; ++i)
    inherit_failure(lane, *more_list(op)[i].stream, more_list(op)[i].position, position);
}

}  // namespace

bool leave_if_empty(Lane& lane) {
  const std::uint64_t head = lane.head;
  if (lane.submit_lock.lock_if_biased()) {  // this thread holds the lock, so no thread submits work meanwhile
    const bool empty = lane.tail == head;
    if (empty) lane.idle.store(true, std::memory_order_release);
    lane.submit_lock.unlock();
    return empty;
  }
  if (lane.published.load(std::memory_order_relaxed) != head) return false;
  // release: the next owner sees what this thread did. The fence: CpuBackend::activate() stores `published` and then
  // reads `idle`; this thread stores `idle` and then reads `published`. At least one of them sees the other's store.
  lane.leaving.fetch_add(1, std::memory_order_relaxed);  // relaxed: a thread that sees `idle` sees it, too
  lane.idle.store(true, std::memory_order_release);
  base::heavy_fence();
  const bool left =
      lane.published.load(std::memory_order_relaxed) == head || !lane.idle.exchange(false, std::memory_order_acquire);
  // release: a thread that sees the decrement also sees whether this thread took the lane back.
  lane.leaving.fetch_sub(1, std::memory_order_release);
  return left;
}

Waiter* take_served(Lane& lane) {
  Waiter* served = nullptr;
  Waiter** last = &served;
  const base::LockGuard lock(lane.wait_lock);
  Waiter** link = &lane.waiters;
  while (Waiter* waiter = *link) {
    if (waiter->position > lane.head) {
      link = &waiter->next;
      continue;
    }
    *link = waiter->next;
    if (waiter->parker) {
      waiter->parker->unpark();  // under the lock: the waiter's stack frame may end once its thread gets the lock
    } else {
      waiter->next = nullptr;
      *last = waiter;
      last = &waiter->next;
    }
  }
  lane.has_waiters.store(lane.waiters != nullptr, std::memory_order_relaxed);
  return served;
}

bool exchange(Lane& lane, PackedOp& op, std::uint64_t position, runtime::Exchange::By by) {
  if (op.target) inherit_failures(lane, op, position);
  if (lane.failure.set() || lane.core->fault.set()) return true;
  const StrictScope strict(lane, op);
  bool done = false;
  strict.call([&] { done = op.exchange->advance(by); });
  return done;
}

bool finish_exchange(Lane& lane, const Op& op, std::uint64_t position) noexcept {
  try {
    op.exchange->finish(nullptr);
    return true;
  } catch (...) {
    keep_exception(lane, op.kind, op.name, op.here, position);
    return false;
  }
}

void execute(Lane& lane, PackedOp& op, std::uint64_t position) {
  if (op.target) inherit_failures(lane, op, position);
  if (op.kind == OpKind::kWait) return;
  if (op.kind == OpKind::kRecord) {
    op.stamp->set(base::now_ns() * 1000);
    op.stamp->release();
    return;
  }
  const bool lost = lane.core->fault.set();
  const bool skip = lost || lane.failure.set();
  if (lost && !lane.failure.set()) {  // streams of other devices that wait for this one must fail, too
    const runtime::Failure cause = lane.core->fault.value();
    runtime::fail_stream(lane, {cause.code, cause.text, position, cause.here});
  }
  const bool is_observed = runtime::observed_by(lane.audience);
  const bool exchanges = op.kind == OpKind::kExchange;
  const std::int64_t began = is_observed && exchanges && !skip ? op.exchange->began_ns() : 0;
  const Picos started = is_observed ? (began != 0 ? began : base::now_ns()) * 1000 : 0;
  if (!skip) [[likely]] {
    perform(lane, op, position);
  } else if (exchanges) {
    const runtime::Failure cause = lane.failure.value();
    op.exchange->finish(&cause);
  }
  if (op.kind == OpKind::kHost) {
    const runtime::CannotWait running;  // freeing a buffer that the function owns would wait for this op
    delete op.host;
  }
  if (is_observed)
    runtime::notify({.kind = RecordKind::kRun,
                     .engine = op.engine,
                     .device = lane.core->id,
                     .queue = lane.queue_index,
                     .stream = lane.last_id,
                     .position = position,
                     .started = started,
                     .ended = base::now_ns() * 1000,
                     .name = op.name,
                     .here = here(op)},
                    lane.audience);
}

}  // namespace slip::backend
