#include "comm/staged/host_calls.hpp"

#include "base/clock.hpp"
#include "base/wait.hpp"

namespace slip::comm {
namespace {

// A failure sends no notification, so a waiting thread polls for it.
constexpr std::int64_t kPollNs = 2'000'000;

}  // namespace

bool HostCalls::run(const StagedCall& call, std::uint64_t index, const StagingSlot& slot) {
  if (index == 0) ++calls_;
  std::visit([&](const auto& one) { prepare(one, index, slot); }, call);
  run_.set_part({whole_, calls_, index + 1 == parts_of(call)});
  while (!run_.advance(runtime::Exchange::By::kWaiter)) wait_until_it_can_advance();
  const bool failed = run_.failed();
  try {
    run_.finish(nullptr);
  } catch (const std::exception&) {  // advance() has reported it to all ranks
  }
  return !failed;
}

void HostCalls::prepare(const StagedCollective& call, std::uint64_t index, const StagingSlot& slot) {
  if (index == 0) {
    whole_ = Signature::of(call.call(), ++number_);
    ranks_.monitor->history.add(whole_, number_);
  }
  const Call part = call.part(index);
  run_.plan().emplace<MessageProgramBuilder>(ranks_.plan_of(part, call.in_place(), explained_));
  // relaxed: only this thread runs calls
  run_.prepare(part, context_.next_ticket.load(std::memory_order_relaxed), number_,
               call.in_place() ? slot.input : slot.output, slot.input);
}

void HostCalls::prepare(const StagedMessages& call, std::uint64_t index, const StagingSlot& slot) {
  if (index == 0) whole_ = Signature::of_message(call.bytes(), 0);
  run_.messages.clear();
  for (const StagedMessages::Piece& piece : call.pieces(index)) {
    const UserMessage& message = call.message(piece);
    run_.messages.push_back({message.out, message.rank, (message.out ? slot.input : slot.output) + piece.slot_offset,
                             piece.bytes, piece.offset, message.bytes});
  }
  run_.plan().emplace<MessageProgramBuilder>(run_.messages);
  run_.prepare({.kind = Collective::kMessage, .type = DataType::kU8, .elements = call.bytes()},
               context_.next_ticket.load(std::memory_order_relaxed), 0);  // relaxed: as above
}

// The proxy wakes this thread when messages arrive. For failures the thread polls, see kPollNs.
void HostCalls::wait_until_it_can_advance() {
  const bool is_notified = run_.subscribe(wake_);
  // The first poll comes after the subscription: earlier events sent no notification.
  for (base::Backoff backoff(base::kPartWait); !run_.can_advance();) {
    if (is_notified) static_cast<void>(wake_.parker.park(base::now_ns() + kPollNs));
    else backoff.pause();
  }
}

}  // namespace slip::comm
