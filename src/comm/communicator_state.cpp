#include "comm/communicator_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/clock.hpp"
#include "base/cores.hpp"
#include "base/env.hpp"
#include "base/log.hpp"
#include "comm/measure_links.hpp"
#include "runtime/core.hpp"

namespace slip {
namespace {

// The number of each rank's host: ranks of one can share memory.
std::vector<int> hosts_of(const std::vector<Placement>& placements, const std::vector<Wishes>& wishes) {
  std::vector<int> hosts(placements.size(), -1);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    for (std::size_t j = 0; j < i && hosts[i] < 0; ++j) {
      if (share_memory(placements[i], placements[j]) && wishes[i].host == wishes[j].host) hosts[i] = hosts[j];
    }
    if (hosts[i] < 0) hosts[i] = static_cast<int>(i);
  }
  return hosts;
}

// More ranks than cores on some machine: who waits there gives its core away.
bool is_crowded(Bootstrap& bootstrap) {
  const std::vector<CoreSet> cores = bootstrap.all_gather(core_set());
  const std::vector<Placement>& placements = bootstrap.placements();
  CoreSet all;
  std::size_t ranks = 0;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (!same_host(placements[i], placements[static_cast<std::size_t>(bootstrap.rank())])) continue;
    all |= cores[i];
    ++ranks;
  }
  return ranks > all.count();
}

// Made once: a name is looked up when it is made.
const std::array kNames = [] {
  std::array<Name, static_cast<std::size_t>(Collective::kMessage) + 1> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = Name(collective_name(static_cast<Collective>(i)));
  return names;
}();
Name name_of(Collective kind) { return kNames[static_cast<std::size_t>(kind)]; }

// Memory that only the ops of its device may touch.
bool is_hidden(const Range& range) {
  return range.block->kind == MemoryKind::kDevice && range.block->core->options.strict;
}

}  // namespace

Communicator::State::State(const Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
                           std::shared_ptr<AbortFlag> abort)
    : device(on),
      options(opts),
      wishes(Wishes::of(options, here)),
      bootstrap(group.id, group.nranks, group.rank, bootstrap_options(options, std::move(abort))) {
  const int rank = group.rank, nranks = group.nranks;
  require_same_heartbeat(bootstrap, options, here);
  const std::vector<Wishes> all = bootstrap.all_gather(wishes);
  require_same_wishes(all, rank, here);
  const std::vector<int> hosts = hosts_of(bootstrap.placements(), all);
  std::vector<int> members;
  for (int other = 0; other < nranks; ++other) {
    if (hosts[static_cast<std::size_t>(other)] == hosts[static_cast<std::size_t>(rank)]) members.push_back(other);
  }
  const bool whole = members.size() == static_cast<std::size_t>(nranks);
  if (nranks == 1 || (wishes.transport == Transport::kAuto && members.size() > 1)) host.emplace(bootstrap, members);
  all_share = host && whole;
  if (all_share) memory.emplace(bootstrap, options.direct);
  std::vector<int> order(static_cast<std::size_t>(nranks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return hosts[static_cast<std::size_t>(a)] < hosts[static_cast<std::size_t>(b)];
  });
  formation = Formation::of(std::move(order));
  const std::int64_t timeout = std::chrono::nanoseconds(options.timeout).count();
  links.emplace(bootstrap, host ? &*host : nullptr, line_options(options), timeout);
  rates = measure_links(bootstrap, *links, now_ns() + std::chrono::nanoseconds(options.init_timeout).count());
  seat = std::make_shared<LedgerSeat>(LedgerSeat::Who{bootstrap.id(), rank, nranks, device.info().name});
  bootstrap.set_witness(seat);
  const SharedCalls::Shared shared{host ? &*host : nullptr, memory ? &*memory : nullptr};
  calls.emplace(bootstrap, shared, *links, *seat, is_crowded(bootstrap), timeout);
}

SharedRun& Communicator::State::take_run() {
  for (const auto& run : runs) {
    if (!load_acquire(run->free)) continue;             // acquire: the call that used it has left it
    run->free.store(false, std::memory_order_relaxed);  // relaxed: only who holds the lock takes one
    return *run;
  }
  runs.push_back(std::make_unique<SharedRun>(*calls));
  runs.back()->free.store(false, std::memory_order_relaxed);  // relaxed: nobody else knows it
  return *runs.back();
}

CallPlan Communicator::State::plan_of(const Call& call, bool in_place) {
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const bool own_way = nranks == 1 || wishes.algorithm == Algorithm::kAuto || wishes.algorithm == Algorithm::kDirect ||
                       find_recipe(wishes.algorithm, call.kind) == nullptr;
  if (all_share && own_way) return HostPlan(call, next_shared, chunks, rank, nranks);
  const bool explain = env().debug == "tune";
  const Choice choice = choose(call, nranks, rates, wishes.algorithm, wishes.deterministic, explain);
  if (explain && rank == 0) log_line(choice.text);
  return MessagePlan(*choice.recipe, {call, rank, nranks, in_place, choice.chunk_bytes, &formation});
}

void Communicator::State::issue_run(SharedRun& run, Name name, std::span<const Range> reads,
                                    std::span<const Range> writes, StreamRef stream, Here here) {
  std::uint64_t bytes = 0;
  for (const Range& range : reads) bytes += range.bytes;
  for (const Range& range : writes) bytes += range.bytes;
  StreamState& state = *stream.state(here);
  try {
    issue(state, {.kind = OpKind::kExchange,
                  .name = name,
                  .here = here,
                  .reads = reads,
                  .writes = writes,
                  .cost = {.bytes = bytes},
                  .exchange = &run});
  } catch (...) {
    run.free.store(true, std::memory_order_relaxed);  // relaxed: guarded by the mutex
    throw;
  }
  seat->enqueue(turn, state.id.load(std::memory_order_relaxed), bytes);  // relaxed: it was checked above
  ++turn;
}

std::optional<Error> Communicator::State::error() const {
  const bool aborted = calls->aborted.load(std::memory_order_relaxed);  // relaxed: nothing is passed with it
  if (!aborted && !(host && host->failed()) && !bootstrap.broken()) return std::nullopt;
  const std::lock_guard lock(error_mutex);
  if (first_error) return first_error;
  const std::optional<Loss> loss = bootstrap.lost();
  const std::optional<RankFailure> told = bootstrap.failure();
  const auto text = [&](const std::string& what) {
    return fmt::format("rank {} of {}: {}", bootstrap.rank(), bootstrap.nranks(), what);
  };
  if (host && host->failed()) first_error = host->why();
  else if (told) first_error.emplace(told->code, told->text, Here{});
  else if (aborted) first_error.emplace(Code::kAborted, text("aborted by this rank"), Here{});
  else if (loss) first_error.emplace(loss->code(), text(loss->text()), Here{});
  else first_error.emplace(Code::kIo, text("its connections to the other ranks failed"), Here{});
  return first_error;
}

void Communicator::State::require_usable(Here here) const {
  if (const std::optional<Error> wrong = error()) throw Error(*wrong);
  if (finalized.load(std::memory_order_relaxed))
    throw Error(Code::kInvalidHandle, "the communicator was finalized: it can only be destroyed", here);
}

// Returns when the device has given back all calls, with or without success.
void Communicator::State::drain() {
  const auto busy = [&] {
    const std::lock_guard lock(mutex);
    for (const auto& run : runs) {
      if (!run->free.load(std::memory_order_acquire)) return true;  // acquire: it is not used any more
    }
    return false;
  };
  for (int look = 0; busy(); ++look) {
    try {
      device.sync();
    } catch (const Error&) {  // was told where it happened
    }
    spin(look);
  }
}

// Sizes are those that the call's blocks say; a range that does not count for this rank is left out.
void Communicator::State::issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here) {
  require_usable(here);
  StreamState& state = *stream.state(here);
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const Name name = name_of(call.kind);
  if (has_root(call.kind) && (call.root < 0 || call.root >= nranks))
    throw Error(Code::kInvalidValue, fmt::format("{}: root {} of {} ranks", name.text(), call.root, nranks), here);
  if (reduces(call.kind) && !can_reduce(call.type))
    throw Error(Code::kInvalidValue,
                fmt::format("{}: values of {} cannot be reduced", name.text(), data_type_name(call.type)), here);
  if (stream.capturing())
    throw Error(Code::kCaptureUnsupported, fmt::format("{}: collectives cannot be captured yet", name.text()), here);
  const Blocks blocks = blocks_of(call, rank, nranks);
  const std::uint64_t in = blocks.in * call.block_bytes(), out = blocks.out * call.block_bytes();
  if ((blocks.in > 0 && from.bytes != in) || (blocks.out > 0 && to.bytes != out))
    throw Error(Code::kInvalidValue,
                fmt::format("{} on rank {} of {}: from {} bytes to {}; expected {} and {}", name.text(), rank, nranks,
                            from.bytes, to.bytes, in, out),
                here);
  Range reads[1], writes[1];
  std::size_t read = 0, written = 0;
  if (in > 0) require_kernel_range(*state.core, reads[read++] = from, name, here);
  if (out > 0) require_kernel_range(*state.core, writes[written++] = to, name, here);
  std::byte* const output = out > 0 ? address(to) : nullptr;
  const std::byte* const input = in > 0 ? address(from) : nullptr;
  // Where the input of this rank is its part of the output, or the other way round.
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * call.block_bytes();
  const bool both = in > 0 && out > 0;
  const bool in_place = both && (blocks.in == blocks.out  ? output == input
                                 : blocks.in > blocks.out ? output == input + own
                                                          : input == output + own);
  const std::lock_guard lock(mutex);
  SharedRun& run = take_run();
  const CallPlan plan = plan_of(call, in_place);
  const bool hidden = (in > 0 && is_hidden(from)) || (out > 0 && is_hidden(to));
  run.prepare(call, plan, turn, next, {output, input, hidden});
  issue_run(run, name, {reads, read}, {writes, written}, stream, here);
  ++next;
  if (const auto* shared = std::get_if<HostPlan>(&plan)) {
    ++next_shared;
    chunks += shared->chunks();
  }
}

// Those to itself are copies: the first send goes to the first receive, and so on.
void Communicator::State::issue_letters(std::span<const Letter> letters, StreamRef stream) {
  static const Name kSend("send"), kRecv("recv");
  require_usable(letters.front().here);
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  std::vector<Range> own_out, own_in;
  std::uint64_t bytes = 0;
  const std::lock_guard lock(mutex);
  sent.clear();
  received.clear();
  parcels.clear();
  for (const Letter& letter : letters) {
    const Name name = letter.out ? kSend : kRecv;
    if (letter.rank < 0 || letter.rank >= nranks)
      throw Error(Code::kInvalidValue, fmt::format("{}: rank {} of {} ranks", name.text(), letter.rank, nranks),
                  letter.here);
    if (stream.capturing())
      throw Error(Code::kCaptureUnsupported, fmt::format("{}: messages cannot be captured yet", name.text()),
                  letter.here);
    if (letter.range.bytes > 0) require_kernel_range(*stream.state(letter.here)->core, letter.range, name, letter.here);
    if (letter.rank == rank) {
      (letter.out ? own_out : own_in).push_back(letter.range);
      continue;
    }
    (letter.out ? sent : received).push_back(letter.range);
    bytes += letter.range.bytes;
    parcels.push_back(
        {letter.out, letter.rank, letter.range.bytes > 0 ? address(letter.range) : nullptr, letter.range.bytes});
  }
  const Here here = letters.front().here;
  if (own_out.size() != own_in.size())
    throw Error(Code::kInvalidValue,
                fmt::format("rank {} sends {} messages to itself and receives {}: a group must have both", rank,
                            own_out.size(), own_in.size()),
                here);
  for (std::size_t i = 0; i < own_in.size(); ++i) stream.copy(own_in[i], own_out[i], {}, here);
  if (parcels.empty()) return;
  SharedRun& run = take_run();
  std::swap(run.parcels, parcels);
  run.prepare({.kind = Collective::kMessage, .type = DataType::kU8, .elements = bytes}, MessagePlan(run.parcels), turn,
              0, {});
  issue_run(run, name_of(Collective::kMessage), sent, received, stream, here);
}

}  // namespace slip
