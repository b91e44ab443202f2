#include "comm/api/communicator_state.hpp"

#include <algorithm>
#include <cstring>

#include "base/fail.hpp"
#include "comm/plan/message_program.hpp"
#include "runtime/capture.hpp"
#include "runtime/exchange.hpp"

namespace slip::comm {
namespace {

// Whether the device protects the memory while none of its ops runs (option strict). Then other ranks cannot access it.
bool is_hidden(const Range& range) {
  return range.block->kind == MemoryKind::kDevice && range.block->core->options.strict;
}

// Whether the call is in place: input and output are the same, or the smaller one is this rank's part of the larger.
// `own`: the offset of that part in bytes.
bool is_in_place(const Range& to, const Range& from, std::uint64_t own) {
  if (from.bytes == to.bytes) return runtime::address(to) == runtime::address(from);
  return from.bytes > to.bytes ? runtime::address(to) == runtime::address(from) + own
                               : runtime::address(from) == runtime::address(to) + own;
}

// Whether a call of the device may use the memory for as long as it exists. Access to the memory of another device can
// be disabled, so it is checked for each call.
bool stays_accessible(const runtime::DeviceCore& core, const Range& range) {
  return range.block->core == &core || range.block->kind == MemoryKind::kPinned;
}

// A kernel, not a copy op: a copy between host buffers would block the host thread (rule 36 in docs/semantics.md).
const Kernel& own_message() {
  static const Kernel kKernel{"message to itself", [](const Args& args) {
                                const std::span<const std::byte> from = args.in<std::byte>(0);
                                std::memmove(args.out<std::byte>(0).data(), from.data(), from.size());
                              }};
  return kKernel;
}

// The i-th send of a rank to itself goes to its i-th receive.
void require_pairs(int rank, std::span<const Range> out, std::span<const Range> in, Here here) {
  if (out.size() != in.size())
    base::fail(ErrorCode::kInvalidValue, here,
               "rank {} sends {} messages to itself and receives {}: a group must have both", rank, out.size(),
               in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (out[i].bytes != in[i].bytes)
      base::fail(ErrorCode::kInvalidValue, here, "rank {} sends {} bytes to itself in message {}, and receives {}",
                 rank, out[i].bytes, i, in[i].bytes);
  }
}

// How many of the user's messages this rank has begun with one other rank.
struct MessageCounts {
  std::uint32_t sent = 0, received = 0;
};

// Compares only the numbers of messages: the receiver has already compared their sizes and their order.
void require_all_received(transport::Bootstrap& bootstrap, const RunningState& state, const transport::SetupCall& call,
                          Here here) {
  const auto nranks = static_cast<std::size_t>(bootstrap.nranks()), rank = static_cast<std::size_t>(bootstrap.rank());
  std::vector<MessageCounts> counts(nranks * nranks);
  bool any = false;
  for (std::size_t other = 0; other < nranks; ++other) {
    MessageCounts& row = counts[rank * nranks + other];
    row.sent = static_cast<std::uint32_t>(state.sent[other].messages);
    row.received = static_cast<std::uint32_t>(state.received[other].messages);
    any = any || row.sent != 0 || row.received != 0;
  }
  const std::vector<char> used = bootstrap.all_gather(static_cast<char>(any ? 1 : 0), call);
  if (std::find(used.begin(), used.end(), 1) == used.end()) return;
  bootstrap.all_gather(std::as_writable_bytes(std::span(counts)), nranks * sizeof(MessageCounts), call);
  for (std::size_t from = 0; from < nranks; ++from) {
    for (std::size_t to = 0; to < nranks; ++to) {
      const std::uint32_t out = counts[from * nranks + to].sent, in = counts[to * nranks + from].received;
      if (out == in) continue;
      // All ranks have found the same pair, so all call this all_gather. Only the sender knows the size of the message.
      const std::vector<std::uint64_t> bytes = bootstrap.all_gather(state.sent[to].bytes, call);
      base::fail(ErrorCode::kMismatch, here,
                 "rank {} sent {} messages to rank {}, which received {}: the last one, of {} bytes, was "
                 "never received",
                 from, out, to, in, bytes[from]);
    }
  }
}

}  // namespace

CallNames::CallNames(const std::string& communicator) {
  const auto named = [&](const char* op) { return Name(communicator.empty() ? op : communicator + "." + op); };
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i] = named(collective_name(static_cast<Collective>(i)));
  send = named("send");
  recv = named("recv");
}

}  // namespace slip::comm

namespace slip {
using namespace comm;

Communicator::State::State(const transport::Membership& group, const Device& on, const CommunicatorOptions& opts,
                           Here here, std::shared_ptr<transport::AbortFlag> abort, int inherited_topology_device)
    : RankConnections(group, on, opts, here, std::move(abort), inherited_topology_device),
      names(opts.name),
      calls{bootstrap,
            host ? &*host : nullptr,
            memory ? &*memory : nullptr,
            *links,
            *ledger_slot,
            cores_each < 1,
            timeout_ns(),
            &monitor->history,
            sim != nullptr} {
  calls.copy_choice.set_mode(requested.single_copy);
  if (gpu) {
    gpu->limit_blocks(requested.max_channels);
    gpu->start({[this] { return error(); }, [this](ErrorCode code, const std::string& text) { fail(code, text); },
                ledger_slot, timeout_ns(), this, &calls});
  }
}

Communicator::State::~State() {
  if (gpu) gpu->stop();  // its thread uses this object
}

CallRun& Communicator::State::take_run() {
  for (const auto& run : runs_) {
    if (!base::load_acquire(run->free)) continue;       // acquire: the writes of the call that used it are visible
    run->free.store(false, std::memory_order_relaxed);  // relaxed: only a thread that holds `mutex_` takes a run
    return *run;
  }
  runs_.push_back(std::make_unique<CallRun>(calls));
  runs_.back()->free.store(false, std::memory_order_relaxed);  // relaxed: no other thread knows this run
  return *runs_.back();
}

SimRun& Communicator::State::sim_run_of(CallRun& run) {
  std::unique_ptr<SimRun>& found = sim_runs_[&run];
  if (!found) found = std::make_unique<SimRun>(*sim, calls, run);
  return *found;
}

void Communicator::State::require_device(const runtime::DeviceCore& core, std::string_view what, Here here) const {
  require_rank_device(core.info, what, here);
  if (core.info.world == world()) return;
  base::fail(ErrorCode::kUnsupported, here,
             "{} on device '{}': the communicator's ranks are on '{}', and the two devices have different clocks: use "
             "a device of the same kind",
             what, core.info.label, device.info().label);
}

// If the sim device runs no functions, no bytes move, and the call becomes a barrier.
void Communicator::State::make_plan(const Call& asked, bool in_place, CallPlan& plan) {
  static const Call kBarrier;
  const Call& call = moves_bytes() ? asked : kBarrier;
  if (is_shared(call)) {
    plan.emplace<HostProgramBuilder>(call, next_.shared, next_.chunks, bootstrap.rank(), bootstrap.nranks(),
                                     memory->can_read());
    return;
  }
  plan.emplace<MessageProgramBuilder>(plan_of(call, in_place, explained_));
}

std::uint64_t Communicator::State::start_run(CallRun& run, Op& op, runtime::StreamState& stream, Submit& submit) {
  std::uint64_t position = 0;
  if (std::holds_alternative<MessageProgramBuilder>(run.plan())) {  // only these calls may use a network
    for (const Ranges& ranges : {op.reads, op.writes}) {
      for (const Range& range : ranges) {
        if (range.block && runtime::covers_all_addresses(*range.block))
          run.add_unowned({runtime::address(range), range.bytes});
      }
    }
  }
  op.exchange = sim ? static_cast<runtime::Exchange*>(&sim_run_of(run)) : &run;
  try {
    position = submit(stream, op);
  } catch (...) {
    run.free.store(true, std::memory_order_relaxed);  // relaxed: guarded by the mutex
    throw;
  }
  enqueued(stream, op);
  return position;
}

void Communicator::State::enqueued(const runtime::StreamState& stream, const Op& op) {
  ledger_slot->enqueue(next_.ticket, stream.id.load(std::memory_order_relaxed),
                       op.cost.bytes);  // relaxed: the stream was checked before
  ++next_.ticket;
}

std::uint64_t Communicator::State::start_gpu_call(const Call& call, Op& op, runtime::StreamState& stream,
                                                  Submit& submit) {
  const std::byte* const input = op.reads.empty() ? nullptr : runtime::address(op.reads[0]);
  std::byte* const output = op.writes.empty() ? nullptr : runtime::address(op.writes[0]);
  const std::uint64_t position =
      gpu->start_call({call, next_.collective, next_.ticket, input, output}, op, stream, submit);
  enqueued(stream, op);
  if (!gpu->runs_on_host()) monitor->history.add(Signature::of(call, next_.collective), next_.collective);
  ++next_.collective;
  return position;
}

std::uint64_t Communicator::State::start_gpu_messages(std::vector<UserMessage>& messages, Op& op,
                                                      runtime::StreamState& stream, Submit& submit) {
  const Range *from = op.reads.begin(), *to = op.writes.begin();
  for (UserMessage& message : messages) {
    if (message.bytes > 0) message.data = runtime::address(*(message.out ? from : to)++);
  }
  const std::uint64_t position = gpu->start_messages(messages, next_.ticket, op, stream, submit);
  enqueued(stream, op);
  if (gpu->runs_on_host()) return position;
  for (const UserMessage& message : messages) {  // finalize() compares the counts
    RunningState::MessageCount& count =
        (message.out ? calls.running.sent : calls.running.received)[static_cast<std::size_t>(message.rank)];
    ++count.messages;
    count.bytes = message.bytes;
  }
  return position;
}

std::uint64_t Communicator::State::start_call(const Call& call, Op& op, runtime::StreamState& stream, Submit& submit) {
  if (gpu) return start_gpu_call(call, op, stream, submit);
  const Range* const from = op.reads.empty() ? nullptr : &op.reads[0];
  const Range* const to = op.writes.empty() ? nullptr : &op.writes[0];
  std::byte* const output = to ? runtime::address(*to) : nullptr;
  const std::byte* const input = from ? runtime::address(*from) : nullptr;
  const std::uint64_t own = static_cast<std::uint64_t>(bootstrap.rank()) * call.block_bytes();
  const bool in_place = from && to && is_in_place(*to, *from, own);
  CallRun& run = take_run();
  make_plan(call, in_place, run.plan());
  const auto* const shared = std::get_if<HostProgramBuilder>(&run.plan());
  const std::uint64_t filled = shared ? shared->chunks() : 0;  // once started, the run may serve another call
  const bool hidden = (from && is_hidden(*from)) || (to && is_hidden(*to));
  run.prepare(call, next_.ticket, next_.collective, output, input, hidden);
  if (sim) sim_run_of(run).prepare(next_.ticket, {call, {from ? *from : Range{}, to ? *to : Range{}, in_place}, {}});
  const Signature signature = run.signature();
  const std::uint64_t position = start_run(run, op, stream, submit);
  monitor->history.add(signature, next_.collective++);
  if (shared) ++next_.shared;
  next_.chunks += filled;
  return position;
}

// Starts the call if this rank has made it before, with the same ranges.
bool Communicator::State::start_known(const Call& call, const Range& to, const Range& from,
                                      runtime::StreamState& stream, Here here) {
  const base::LockGuard lock(mutex_);
  KnownCall* const known = known_.find(call, to, from, stream.core->id);
  if (!known) return false;
  Op op{.kind = OpKind::kExchange,
        .engine = Engine::kCommunication,
        .name = names[call.kind],
        .here = here,
        .reads = std::span<const Range>(&known->from, known->reads ? 1 : 0),
        .writes = std::span<const Range>(&known->to, known->writes ? 1 : 0),
        .cost = {.bytes = (known->reads ? from.bytes : 0) + (known->writes ? to.bytes : 0)}};
  CallRun& run = take_run();
  auto* program = std::get_if<HostProgramBuilder>(&run.plan());
  if (!program || program->call() != call) program = &run.plan().emplace<HostProgramBuilder>(known->program);
  program->set_number(next_.shared);
  run.prepare(call, next_.ticket, next_.collective, known->writes ? runtime::address(to) : nullptr,
              known->reads ? runtime::address(from) : nullptr);
  const Signature signature = run.signature();
  start_run(run, op, stream, runtime::issue);
  monitor->history.add(signature, next_.collective++);
  ++next_.shared;
  return true;
}

std::uint64_t Communicator::State::start_messages(CallRun& run, Op& op, runtime::StreamState& stream, Submit& submit) {
  const Range *from = op.reads.begin(), *to = op.writes.begin();
  std::uint64_t bytes = 0;
  std::vector<SimCall::Message> simulated;
  for (UserMessage& message : run.messages) {
    Range range;
    if (message.bytes > 0) range = *(message.out ? from : to)++;
    if (sim) simulated.push_back({message.out, message.rank, range});
    bytes += message.bytes;
    if (!moves_bytes()) message.bytes = 0;
    if (message.bytes > 0) message.data = runtime::address(range);
  }
  run.plan().emplace<MessageProgramBuilder>(run.messages);
  run.prepare({.kind = Collective::kMessage, .type = DataType::kU8, .elements = bytes}, next_.ticket, 0);
  if (sim) sim_run_of(run).prepare(next_.ticket, {{.kind = Collective::kMessage}, {}, std::move(simulated)});
  return start_run(run, op, stream, submit);
}

std::optional<Error> Communicator::State::error() const {
  if (!calls.has_failed()) return std::nullopt;
  const bool aborted = calls.aborted.load(std::memory_order_relaxed);  // relaxed: no other data is published with it
  const base::LockGuard lock(error_mutex_);
  if (first_error_) return first_error_;
  const std::optional<transport::Loss> loss = bootstrap.failures().first_loss();
  const std::optional<transport::RankFailure> reported = bootstrap.failures().failure();
  const auto text = [&](const std::string& what) {
    return fmt::format("rank {} of {}: {}", bootstrap.rank(), bootstrap.nranks(), what);
  };
  if (host && host->failed()) first_error_ = host->why();
  else if (reported) first_error_.emplace(reported->code, reported->text, Here{});
  else if (aborted) first_error_.emplace(ErrorCode::kAborted, text("aborted by this rank"), Here{});
  else if (loss) first_error_.emplace(loss->code(), text(loss->text()), Here{});
  else first_error_.emplace(ErrorCode::kIo, text("its connections to the other ranks failed"), Here{});
  return first_error_;
}

void Communicator::State::require_usable(Here here) const {
  if (calls.has_failed()) [[unlikely]] {
    if (const std::optional<Error> wrong = error()) throw Error(*wrong);
  }
  require_not_finalized(here);
}

void Communicator::State::require_not_finalized(Here here) const {
  if (finalized_.load(std::memory_order_relaxed))
    throw Error(ErrorCode::kInvalidHandle, "the communicator was finalized: it can only be destroyed", here);
}

void Communicator::State::fail(ErrorCode code, const std::string& text) noexcept {
  try {
    ledger_slot->fail(transport::LedgerLife::kFailed, text);
    if (!host || host->fail(code, text)) bootstrap.failures().fail(code, text);
  } catch (const std::exception&) {                        // no memory for the text: abort without one
    calls.aborted.store(true, std::memory_order_relaxed);  // relaxed: no other data is published with it
    bootstrap.abort();
  }
}

void Communicator::State::fail_group(const std::string& text) noexcept {
  std::string named;
  try {
    named = fmt::format("rank {} of {}: {}", bootstrap.rank(), bootstrap.nranks(), text);
  } catch (const std::exception&) {  // no memory: fail() sends the error without a text
  }
  fail(kUnendedCode, named);
}

void Communicator::State::drain() {
  if (gpu) return gpu->drain();
  const auto busy = [&] {
    const base::LockGuard lock(mutex_);
    for (const auto& run : runs_) {
      if (!run->free.load(std::memory_order_acquire)) return true;  // acquire: the call's writes are visible
    }
    return false;
  };
  for (base::Backoff backoff; busy(); backoff.pause()) {
    try {
      device.sync();
    } catch (const Error&) {  // the failed call has already reported its error
    }
  }
}

// Checks the ranges against the blocks of the call. A range that the call does not use on this rank is ignored.
void Communicator::State::issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here) {
  require_usable(here);
  runtime::StreamState& state = *stream.state(here);
  // Before the lock: a thread that waits for room in the stream holds it, perhaps until the caller's op has run.
  runtime::require_usable(*state.core, here);
  const bool captures = state.capture.load(std::memory_order_relaxed) != nullptr;
  if (!captures && start_known(call, to, from, state, here)) return;
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const Name name = names[call.kind];
  if (state.core->info.world != world()) [[unlikely]]
    require_device(*state.core, name.text(), here);
  if (has_root(call.kind) && (call.root < 0 || call.root >= nranks))
    base::fail(ErrorCode::kInvalidValue, here, "{}: root {} is not a rank of the communicator, which has {} ranks",
               name.text(), call.root, nranks);
  if (reduces(call.kind) && !can_reduce(call.type))
    base::fail(ErrorCode::kInvalidValue, here, "{}: values of {} cannot be reduced", name.text(),
               data_type_name(call.type));
  const Blocks blocks = blocks_of(call, rank, nranks);
  const std::uint64_t in = blocks.in * call.block_bytes(), out = blocks.out * call.block_bytes();
  if ((blocks.in > 0 && from.bytes != in) || (blocks.out > 0 && to.bytes != out))
    base::fail(ErrorCode::kInvalidValue, here,
               "{} on rank {} of {}: the input has {} bytes and the output {}; expected {} and {}", name.text(), rank,
               nranks, from.bytes, to.bytes, in, out);
  Range reads[1], writes[1];
  std::size_t read = 0, written = 0;
  if (in > 0) runtime::require_kernel_range(*state.core, reads[read++] = from, name, here);
  if (out > 0) runtime::require_kernel_range(*state.core, writes[written++] = to, name, here);
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * call.block_bytes();
  if (in > 0 && out > 0 && overlap(to, from) && !is_in_place(to, from, own))
    base::fail(ErrorCode::kInvalidValue, here,
               "{}: bytes {} to {} of buffer '{}' are read, and {} to {} written: they may be the same, but "
               "not overlap otherwise",
               name.text(), from.offset, from.offset + from.bytes, from.block->name.text(), to.offset,
               to.offset + to.bytes);
  Op op{.kind = OpKind::kExchange,
        .engine = Engine::kCommunication,
        .name = name,
        .here = here,
        .reads = std::span<const Range>(reads, read),
        .writes = std::span<const Range>(writes, written),
        .cost = {.bytes = in + out}};
  if (captures) return capture(state, op, call, {});
  const base::LockGuard lock(mutex_);
  start_call(call, op, state, runtime::issue);
  const auto stays = [&](const Range& range) { return stays_accessible(*state.core, range); };
  if (is_repeatable(call) && std::ranges::all_of(op.reads, stays) && std::ranges::all_of(op.writes, stays))
    known_.keep({call, to, from, out > 0, in > 0, state.core->id, {call, 0, 0, rank, nranks}});
}

// Fills in `issued_`. Throws if a message cannot be sent or received.
void Communicator::State::sort_messages(std::span<const PendingSendRecv> messages, runtime::StreamState& state) {
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const Here here = messages.front().here;
  for (auto* const ranges : {&issued_.sent, &issued_.received, &issued_.own_sent, &issued_.own_received})
    ranges->clear();
  issued_.messages.clear();
  for (const PendingSendRecv& message : messages) {
    const Name name = message.out ? names.send : names.recv;
    if (message.rank < 0 || message.rank >= nranks)
      base::fail(ErrorCode::kInvalidValue, message.here,
                 "{}: rank {} is not a rank of the communicator, which has {} ranks", name.text(), message.rank,
                 nranks);
    if (message.range.bytes > 0) runtime::require_kernel_range(*state.core, message.range, name, message.here);
    if (message.rank == rank) {
      (message.out ? issued_.own_sent : issued_.own_received).push_back(message.range);
      continue;
    }
    if (message.range.bytes > 0) (message.out ? issued_.sent : issued_.received).push_back(message.range);
    issued_.messages.push_back({message.out, message.rank, nullptr, message.range.bytes});
  }
  require_apart(issued_.sent, issued_.received, issued_.sorted, here);
  require_pairs(rank, issued_.own_sent, issued_.own_received, here);
}

runtime::StreamState& Communicator::State::require_stream_for(std::span<const PendingSendRecv> messages,
                                                              StreamRef stream) const {
  const Here here = messages.front().here;
  require_usable(here);
  runtime::StreamState& state = *stream.state(here);
  runtime::require_usable(*state.core, here);  // before the lock, see issue_call()
  if (state.core->info.world != world()) [[unlikely]]
    require_device(*state.core, names[Collective::kMessage].text(), here);
  return state;
}

void Communicator::State::check_messages(std::span<const PendingSendRecv> messages, StreamRef stream) {
  runtime::StreamState& state = require_stream_for(messages, stream);
  for (const PendingSendRecv& message : messages)
    runtime::require_stream(*message.stream.state(message.here), message.here);
  const base::LockGuard lock(mutex_);
  sort_messages(messages, state);
}

// Each message of this rank to itself becomes a copy kernel. All other messages become one exchange.
void Communicator::State::issue_messages(std::span<const PendingSendRecv> messages, StreamRef stream) {
  runtime::StreamState& state = require_stream_for(messages, stream);
  const Here here = messages.front().here;
  const base::LockGuard lock(mutex_);
  sort_messages(messages, state);
  for (std::size_t i = 0; i < issued_.own_received.size(); ++i) {
    const Range &from = issued_.own_sent[i], &to = issued_.own_received[i];
    if (to.bytes == 0) continue;
    if (gpu) stream.copy(to, from, names[Collective::kMessage], here);
    else stream.launch(own_message(), {.reads = {from}, .writes = {to}}, {.bytes = 2 * to.bytes}, here);
  }
  if (issued_.messages.empty()) return;
  std::uint64_t bytes = 0;
  for (const UserMessage& message : issued_.messages) bytes += message.bytes;
  Op op{.kind = OpKind::kExchange,
        .engine = Engine::kCommunication,
        .name = names[Collective::kMessage],
        .here = here,
        .reads = issued_.sent,
        .writes = issued_.received,
        .cost = {.bytes = bytes}};
  if (state.capture.load(std::memory_order_relaxed))
    return capture(state, op, {.kind = Collective::kMessage}, issued_.messages);
  if (gpu) {
    start_gpu_messages(issued_.messages, op, state, runtime::issue);
    return;
  }
  CallRun& run = take_run();
  std::swap(run.messages, issued_.messages);
  start_messages(run, op, state, runtime::issue);
}

// A captured call, as an op of a plan. Each launch of the plan makes a new call of the communicator.
class Communicator::State::CapturedCall final : public runtime::ExchangeSource {
 public:
  CapturedCall(const std::shared_ptr<State>& comm, const Op& op, const Call& call, std::vector<UserMessage> messages)
      : comm_(comm), order_key_(comm.get()), name_(op.name), call_(call), messages_(std::move(messages)) {
    for (const Range& range : op.reads) reads_.push_back(range.bytes);
    for (const Range& range : op.writes) writes_.push_back(range.bytes);
  }

  void require(const runtime::DeviceCore& core, Ranges reads, Ranges writes, Here here) const override {
    const std::shared_ptr<State> comm = communicator(here);
    comm->require_usable(here);
    comm->require_device(core, name_.text(), here);
    const auto bytes_of_range = [](const Range& range) { return range.bytes; };
    if (!std::ranges::equal(reads, reads_, {}, bytes_of_range) ||
        !std::ranges::equal(writes, writes_, {}, bytes_of_range))
      base::fail(ErrorCode::kInvalidValue, here, "{} of a plan: its ranges have other sizes", name_.text());
  }

  std::uint64_t enqueue(runtime::StreamState& stream, const Op& op) const override {
    const std::shared_ptr<State> comm = communicator(op.here);
    Op own = op;
    const base::LockGuard lock(comm->mutex_);
    if (call_.kind != Collective::kMessage) return comm->start_call(call_, own, stream, runtime::enqueue);
    if (comm->gpu) {
      std::vector<UserMessage> messages = messages_;
      return comm->start_gpu_messages(messages, own, stream, runtime::enqueue);
    }
    CallRun& run = comm->take_run();
    run.messages = messages_;
    return comm->start_messages(run, own, stream, runtime::enqueue);
  }

  const void* order_key() const override { return order_key_; }

 private:
  std::shared_ptr<State> communicator(Here here) const {
    if (std::shared_ptr<State> comm = comm_.lock()) return comm;
    base::fail(ErrorCode::kInvalidHandle, here, "{} of a plan: its communicator was destroyed", name_.text());
  }

  const std::weak_ptr<State> comm_;
  const void* const order_key_;
  const Name name_;
  const Call call_;
  const std::vector<UserMessage> messages_;    // of a call of sends and receives
  std::vector<std::uint64_t> reads_, writes_;  // bytes of its ranges
};

void Communicator::State::capture(runtime::StreamState& stream, const Op& op, const Call& call,
                                  std::vector<UserMessage> messages) {
  runtime::require_stream(stream, op.here);
  stream.capture
      .load(std::memory_order_acquire)  // acquire: this thread sees the constructed capture
      ->add(stream, op, std::make_shared<CapturedCall>(shared_from_this(), op, call, std::move(messages)));
}

void Communicator::State::finalize(Here here) {
  require_usable(here);
  drain();
  require_usable(here);
  const transport::SetupCall call = bootstrap.begin(transport::SetupKind::kFinalize, options.timeout);
  bootstrap.barrier(call);
  try {
    require_same_calls(bootstrap, monitor->history, call, here);
    require_all_received(bootstrap, calls.running, call, here);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    const std::string text = base::bare_text(error);
    fail(error.code(), text);  // so that later calls throw it, too
    throw Error(error.code(), text, here);
  }
  finalized_.store(true, std::memory_order_relaxed);
}

}  // namespace slip
