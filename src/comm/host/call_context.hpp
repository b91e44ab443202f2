// CallContext: the state that all calls of one rank in one communicator share. Communicator::State owns it; the classes
// that run a call (CallRun, ProgramRunner, CallWaiter, FailureCheck, PeerBuffers) refer to it.
//
// The calls of a rank run one at a time, in the order of their tickets. So the fields of RunningState need no lock:
// they belong to the call whose ticket is `next_ticket`, and the release store to `next_ticket` hands them to the next
// call.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/memory_end.hpp"
#include "comm/diagnose/call_history.hpp"
#include "comm/host/copy_choice.hpp"
#include "comm/host/shared_host.hpp"
#include "comm/host/shared_memory.hpp"
#include "comm/link/links.hpp"
#include "comm/plan/host_program.hpp"
#include "comm/plan/message_program.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::comm {

// How a rank runs a call: through shared memory with all others at once, or by messages between pairs of ranks.
using CallPlan = std::variant<std::monostate, HostProgramBuilder, MessageProgramBuilder>;

// The call that a CallRun is running.
struct ActiveCall {
  Call call;
  Signature signature;
  CallPlan plan;
  std::uint64_t ticket = 0;  // its position among all calls of this rank
  // Its number in the ledger: the ticket, unless the call is a part of a larger one (CallRun::set_part).
  std::uint64_t ledger_number = 0;
  bool ends_in_ledger = true;     // no other part of the larger call follows
  std::uint64_t host_number = 0;  // its number among the calls through shared memory (HostProgramBuilder::number)
  std::byte* output = nullptr;
  const std::byte* input = nullptr;

  // Inline, because every call uses it.
  std::uint64_t pieces() const {
    if (const auto* const shared = std::get_if<HostProgramBuilder>(&plan)) return shared->pieces();
    if (const auto* const messages = std::get_if<MessageProgramBuilder>(&plan)) return messages->pieces(0);
    return 0;
  }
  int channels() const {  // more than 1 only with a MessageProgramBuilder
    const auto* const messages = std::get_if<MessageProgramBuilder>(&plan);
    return messages ? messages->channels() : 1;
  }
  bool publishes_buffers() const {  // see HostProgramBuilder::asks
    const auto* const shared = std::get_if<HostProgramBuilder>(&plan);
    return shared && shared->asks();
  }
};

// The progress of one channel of a call by messages.
struct ChannelProgress {
  Program program;  // of the current piece
  std::uint64_t piece = 0, pieces = 0;
  std::size_t step = 0;
  std::uint64_t scratch = 0;  // offset of its scratch memory

  bool over() const { return piece == pieces; }
  const Primitive& next() const { return program.steps[step]; }
};

// State of the call whose ticket is `next_ticket`. Vectors and programs keep their memory from call to call, so that a
// call allocates nothing. The programs of small calls and messages are kept and reused for equal calls.
struct RunningState {
  RunningState(int nranks, int channel_count)
      : targets(std::max<std::size_t>(static_cast<std::size_t>(nranks), 2)),
        sources(static_cast<std::size_t>(nranks)),
        scales(static_cast<std::size_t>(nranks)),
        peers(static_cast<std::size_t>(nranks)),
        channels(static_cast<std::size_t>(channel_count)),
        sent(static_cast<std::size_t>(nranks) * channels.size()),
        received(sent.size()) {}

  std::uint64_t phase = 0;  // the last phase of all earlier calls
  struct SmallProgram {
    Signature call{0, ~std::uint64_t{0}};  // without its number; at first a value that no call has
    Program program;
  };
  std::array<SmallProgram, 8> small;  // by a hash of the call
  struct MessageProgram {
    std::vector<UserMessage> messages;
    Program program;
  };
  MessageProgram messages;  // of the user's last sends and receives that were one piece
  Program program;          // of a piece of a larger call
  // Operands of the current reduction. It has at most two targets (output and staging memory), or one in each rank.
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<ReduceScale> scales;
  // Another rank's buffers and its factor. The buffers are mapped into this process, unless `input_process` is set.
  struct Peer {
    std::byte *input = nullptr, *output = nullptr;
    ReduceScale scale = {};
    // Not 0: pid of the other rank. `input` is an address in that process, and only read_process() can read it.
    std::int32_t input_process = 0;
  };
  std::vector<Peer> peers;
  std::vector<std::byte, base::NotifyingAllocator<std::byte>> scratch;
  std::vector<ChannelProgress> channels;
  struct MessageCount {
    std::uint64_t ticket = 0;    // of the last call that sent its signature
    std::uint64_t messages = 0;  // number of the user's messages so far
    std::uint64_t bytes = 0;     // of the user's last message
  };
  std::vector<MessageCount> sent, received;  // by channel and rank
  int slow_waits = 0;       // > 0: network waits return at once, because a recent wait took long (see CallWaiter)
  int contended_waits = 0;  // > 0: the next waits avoid yields, because a yield lost the core (see CallWaiter)
};

struct CallContext {
  void throw_failure() const;  // throws if a rank has failed and reported the reason; in failure_check.cpp
  // Whether this rank aborted, or a rank failed or was lost. Three loads, cheap enough for every call. relaxed:
  // `aborted` publishes no other data.
  bool has_failed() const {
    return aborted.load(std::memory_order_relaxed) || (host && host->failed()) || bootstrap.broken();
  }

  transport::Bootstrap& bootstrap;
  SharedHost* const host;      // null: this rank shares memory with no other
  SharedMemory* const memory;  // null: some ranks are on other hosts
  Links& links;
  transport::LedgerSlot& ledger_slot;
  const bool oversubscribed;  // more ranks than cores: a waiting thread yields its core at once
  const std::int64_t timeout_ns;
  const CallHistory* const history = nullptr;  // of this rank
  const bool one_thread = false;  // one thread advances all ranks: a rank that must wait polls once and returns

  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  CopyChoice copy_choice{};
  std::atomic<std::uint64_t> next_ticket{1};  // the ticket of the call that may run
  RunningState running{nranks, links.channels()};
  std::atomic<bool> aborted{false};
};

// This rank's end of the link that a send or receive step uses.
inline LinkEnd& link_of(Links& links, const Primitive& step, int channel) {
  const bool out = step.kind == Primitive::Kind::kSend || step.kind == Primitive::Kind::kSent;
  const auto rank = static_cast<int>(step.peer);
  return out ? links.to(rank, channel) : links.from(rank, channel);
}
// Whether a step of a channel can run without waiting.
inline bool can_run(Links& links, const Primitive& step, int channel) {
  switch (step.kind) {
    case Primitive::Kind::kSend:
    case Primitive::Kind::kReceive: return !link_of(links, step, channel).full();
    case Primitive::Kind::kSent:
    case Primitive::Kind::kReceived: {
      const LinkEnd& link = link_of(links, step, channel);
      return link.begun() - link.done() <= step.value;
    }
    default: return true;
  }
}

}  // namespace slip::comm
