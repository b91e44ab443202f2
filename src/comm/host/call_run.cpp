#include "comm/host/call_run.hpp"

#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/memory_end.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"

namespace slip::comm {

void CallRun::prepare(const Call& call, std::uint64_t ticket, std::uint64_t number, std::byte* output,
                      const std::byte* input, bool hidden) {
  ActiveCall& active = runner_.call();
  active.call = call;
  active.ticket = ticket;
  active.output = output;
  active.input = input;
  active.signature = Signature::of(call, number);
  active.ledger_number = ticket;
  active.ends_in_ledger = true;
  runner_.prepare(hidden);
  unowned_.clear();
  begun_ = ended_ = false;
  error_ = nullptr;
}

void CallRun::set_part(const Part& part) {
  ActiveCall& active = runner_.call();
  active.signature = part.whole;
  active.ledger_number = part.number;
  active.ends_in_ledger = part.is_last;
}

// Runs a small call in the enqueuing thread as far as possible without a long wait, so that peers see its input early.
bool CallRun::begin() noexcept {
  constexpr std::uint64_t kBeginBytes = 32 << 10;  // copied in a few microseconds; enqueuing should not take longer
  if (runner_.call().call.block_bytes() > kBeginBytes) return false;
  runner_.waiter().set_may_spin(false);
  ended_ = advance(By::kWorker);
  runner_.waiter().set_may_spin(true);
  return ended_;
}

bool CallRun::advance(By thread) noexcept {
  if (ended_) return true;
  CallWaiter& waiter = runner_.waiter();
  waiter.set_thread(thread);
  waiter.unsubscribe();
  try {
    if ((!begun_ && !start()) || !runner_.run()) {
      // In a long wait the proxy thread drives the links. Right after enqueuing the proxy is not needed: soon the
      // caller waits for the call, or a worker thread advances it. Until this call has begun, the links belong to
      // another call.
      if (waiter.may_spin() && begun_) context_.links.set_driven(false);
      return false;
    }
  } catch (const Error& caught) {
    const Error error = waiter.failures().with_cause(caught);
    fail(error.code(), base::bare_text(error));
    error_ = std::make_exception_ptr(error);
  } catch (const std::exception& error) {
    fail(ErrorCode::kLaunchFailed, fmt::format("rank {} in {}: {}", context_.rank, signature().text(), error.what()));
    error_ = std::current_exception();
  }
  if (error_) give_up();
  end();
  return true;
}

// False: an earlier call of this rank has not ended.
bool CallRun::start() {
  const ActiveCall& call = runner_.call();
  const bool is_next = base::load_acquire(context_.next_ticket) == call.ticket;  // acquire: see end()
  if (!is_next && !runner_.waiter().await(WaitCondition::Kind::kTicket, call.ticket)) return false;
  if (context_.has_failed()) [[unlikely]] {
    context_.throw_failure();  // after a failure the phases of the ranks may differ, and links may be closed
    if (context_.bootstrap.broken()) runner_.waiter().failures().throw_loss();
  }
  began_ns_ = runtime::observed() ? base::now_ns() : 0;
  begun_ = true;
  context_.ledger_slot.begin(call.ledger_number, call.signature.elements, call.signature.rest);
  runner_.start();
  return true;
}

// The call failed. When this returns, no other rank and no link accesses its buffers.
void CallRun::give_up() noexcept {
  if (!begun_) return;  // the links belong to another call
  context_.links.close();
  if (auto* const plan = std::get_if<HostProgramBuilder>(&runner_.call().plan); plan && plan->asks())
    runner_.peers().leave(*plan);
}

// Lets the next call of this rank run. A failed call may leave a wrong phase, but no rank uses the phase after a
// failure: start() throws.
void CallRun::end() {
  const ActiveCall& call = runner_.call();
  if (const auto* const shared = std::get_if<HostProgramBuilder>(&call.plan); shared && begun_)
    context_.running.phase += shared->phases();
  runner_.waiter().end_wait();  // the call may have failed in a wait
  for (const std::span<const std::byte> memory : unowned_) base::notify_memory_end(memory.data(), memory.size());
  if (call.ends_in_ledger || error_) context_.ledger_slot.end(call.ledger_number);
  // release: the next call sees `running` as this call left it.
  context_.next_ticket.store(call.ticket + 1, std::memory_order_release);
}

void CallRun::finish(const runtime::Failure* cause) {
  runner_.waiter().unsubscribe();
  if (cause) {
    // If the stream failed because a rank was lost, the calls behind it report a lost rank, too, even if they belong to
    // another communicator.
    fail(cause->code == ErrorCode::kRankLost ? ErrorCode::kRankLost : ErrorCode::kAborted,
         fmt::format("rank {} skipped {}, because its stream had failed before: {}", context_.rank, signature().text(),
                     cause->text));
    error_ = nullptr;  // the stream keeps its own error
    if (!begun_) {
      // Even if earlier calls still run: the next call throws in start() because of the failure, and uses no state.
      context_.next_ticket.store(runner_.call().ticket + 1, std::memory_order_release);
    } else if (!ended_) {  // begin() or advance() ran part of the call
      give_up();
      end();
    }
  }
  if (!error_) [[likely]] {
    free.store(true, std::memory_order_release);
    return;
  }
  const std::exception_ptr error = std::exchange(error_, nullptr);
  free.store(true, std::memory_order_release);
  std::rethrow_exception(error);
}

}  // namespace slip::comm
