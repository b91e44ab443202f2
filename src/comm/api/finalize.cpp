// Communicator::State, as far as the ranks compare at the end what they called and sent. Calls in which a rank waits
// for nobody, and messages that the network has taken, succeed without the other side.
#include <fmt/format.h>

#include <algorithm>

#include "base/error_text.hpp"
#include "comm/api/communicator_state.hpp"

namespace slip {
namespace {

// How many messages of the user this rank has begun, with one other rank.
struct MessageCounts {
  std::uint32_t sent = 0, received = 0;
};

std::string difference_text(int rank, const CallHistory::Snapshot& own, int other_rank,
                            const CallHistory::Snapshot& other) {
  if (own.count != other.count) {
    const bool more = own.count > other.count;
    const Signature* const call =
        (more ? own : other).find(static_cast<std::uint32_t>(std::min(own.count, other.count) + 1));
    return fmt::format("rank {} made {} calls and rank {} made {}{}", rank, own.count, other_rank, other.count,
                       call ? fmt::format(": rank {} alone called {}", more ? rank : other_rank, call->text()) : "");
  }
  return fmt::format("rank {} and rank {} made {} calls each, and a call before the last {} differs", rank, other_rank,
                     own.count, CallHistory::kCalls);
}

}  // namespace

void Communicator::State::finalize(Here here) {
  require_usable(here);
  drain();
  require_usable(here);
  const SetupCall call = bootstrap.begin(SetupKind::kFinalize, options.timeout);
  bootstrap.barrier(call);
  try {
    require_same_calls(call, here);
    require_all_received(call, here);
  } catch (const Error& error) {
    if (error.code() != Code::kMismatch) throw;
    const std::string text = bare_text(error);
    fail(error.code(), text);  // later calls throw it, too
    throw Error(error.code(), text, here);
  }
  finalized.store(true, std::memory_order_relaxed);
}

// If two ranks differ, every rank differs from one of them: each finds an error by itself.
void Communicator::State::require_same_calls(const SetupCall& call, Here here) {
  const int rank = bootstrap.rank();
  const CallHistory::Snapshot own = monitor->history.snapshot();
  const std::vector<CallHistory::Snapshot> all = bootstrap.all_gather(own, call);
  for (int other = 0; other < bootstrap.nranks(); ++other) {
    const CallHistory::Snapshot& theirs = all[static_cast<std::size_t>(other)];
    if (theirs.count == own.count && theirs.digest == own.digest) continue;
    if (const auto difference = first_difference(own, theirs))
      throw CallMismatch(rank, difference->first, other, difference->second);
    throw Error(Code::kMismatch,
                difference_text(rank, own, other, theirs) +
                    ": all ranks of a communicator must make the same calls in the same order",
                here);
  }
}

// Of a pair of ranks only the number of messages can differ: sizes and order were compared when they were received.
void Communicator::State::require_all_received(const SetupCall& call, Here here) {
  const auto nranks = static_cast<std::size_t>(bootstrap.nranks()), rank = static_cast<std::size_t>(bootstrap.rank());
  std::vector<MessageCounts> counts(nranks * nranks);
  bool any = false;
  for (std::size_t other = 0; other < nranks; ++other) {
    MessageCounts& row = counts[rank * nranks + other];
    row.sent = static_cast<std::uint32_t>(calls->said_to[other].messages);
    row.received = static_cast<std::uint32_t>(calls->said_from[other].messages);
    any = any || row.sent != 0 || row.received != 0;
  }
  const std::vector<char> used = bootstrap.all_gather(static_cast<char>(any ? 1 : 0), call);
  if (std::find(used.begin(), used.end(), 1) == used.end()) return;
  bootstrap.all_gather(std::as_writable_bytes(std::span(counts)), nranks * sizeof(MessageCounts), call);
  for (std::size_t from = 0; from < nranks; ++from) {
    for (std::size_t to = 0; to < nranks; ++to) {
      const std::uint32_t out = counts[from * nranks + to].sent, in = counts[to * nranks + from].received;
      if (out == in) continue;
      // All ranks have found the same pair. Its size is what the sender alone knows.
      const std::vector<std::uint64_t> bytes = bootstrap.all_gather(calls->said_to[to].bytes, call);
      throw Error(Code::kMismatch,
                  fmt::format("rank {} sent {} messages to rank {}, which received {}: the last one, of {} bytes, was "
                              "never received",
                              from, out, to, in, bytes[from]),
                  here);
    }
  }
}

}  // namespace slip
