#include "comm/api/communicator_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/error_text.hpp"
#include "base/terminal.hpp"
#include "comm/link/measure_links.hpp"
#include "comm/placement/places.hpp"
#include "comm/plan/overlaps.hpp"
#include "runtime/core.hpp"

namespace slip {
namespace {

// How many cores a rank has. Below 1: who waits gives its core away.
struct Crowds {
  double cores_each = 1;  // on this rank's machine
  bool anywhere = false;  // more ranks than cores
};
Crowds find_crowds(const Bootstrap& bootstrap, const std::vector<Presence>& ranks) {
  struct Machine {
    const Placement* of = nullptr;
    CoreSet cores;
    std::size_t ranks = 0;
    double cores_each() const { return static_cast<double>(cores.count()) / static_cast<double>(ranks); }
  };
  std::vector<Machine> machines;
  const std::vector<Placement>& placements = bootstrap.placements();
  const auto machine_of = [&](const Placement& placement) {
    return std::find_if(machines.begin(), machines.end(),
                        [&](const Machine& one) { return same_host(*one.of, placement); });
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    auto machine = machine_of(placements[rank]);
    if (machine == machines.end()) machine = machines.insert(machine, Machine{&placements[rank], {}, 0});
    machine->cores |= ranks[rank].cores;
    ++machine->ranks;
  }
  return {machine_of(placements[static_cast<std::size_t>(bootstrap.rank())])->cores_each(),
          std::any_of(machines.begin(), machines.end(), [](const Machine& one) { return one.cores_each() < 1; })};
}

// Within what was asked for, what is useful.
void set_channels(const Wishes& wishes, const std::vector<int>& hosts, bool crowded, Site& site) {
  std::map<int, int> ranks;
  for (const int host : hosts) ++ranks[host];
  int each = site.nranks;
  for (const auto& [host, count] : ranks) each = std::min(each, count);
  const int most = wishes.max_channels == 0 ? kMaxChannels : wishes.max_channels;
  site.min_channels = std::max(wishes.min_channels, 1);
  site.max_channels =
      std::clamp(useful_channels(static_cast<int>(ranks.size()), each, crowded), site.min_channels, most);
}

// Made once: a name is looked up when it is made.
const std::array kNames = [] {
  std::array<Name, static_cast<std::size_t>(Collective::kMessage) + 1> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = Name(collective_name(static_cast<Collective>(i)));
  return names;
}();
Name name_of(Collective kind) { return kNames[static_cast<std::size_t>(kind)]; }

// Whether the input of this rank is its part of the output, or the other way round. `own`: where that part begins.
bool is_in_place(const Range& to, const Range& from, std::uint64_t own) {
  if (from.bytes == to.bytes) return address(to) == address(from);
  return from.bytes > to.bytes ? address(to) == address(from) + own : address(from) == address(to) + own;
}

// Memory that only the ops of its device may touch.
bool is_hidden(const Range& range) {
  return range.block->kind == MemoryKind::kDevice && range.block->core->options.strict;
}

}  // namespace

Communicator::State::State(const Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
                           std::shared_ptr<AbortFlag> abort, int stood_for)
    : device(on),
      world(on.info().world),
      options(opts),
      wishes(Wishes::of(options, here)),
      bootstrap(group.id, group.nranks, group.rank, bootstrap_options(options, std::move(abort))) {
  bootstrap.set_call(bootstrap.begin(SetupKind::kInit));
  try {
    set_up(stood_for, here);
  } catch (const Error& error) {
    const bool is_consequence = error.code() == Code::kRankLost || error.code() == Code::kAborted;
    const Error cause = is_consequence ? bootstrap.with_cause(error) : error;
    // A mismatch is found by each rank. Of anything else the others would only see that this rank left.
    if (cause.code() != Code::kMismatch) bootstrap.fail(cause.code(), bare_text(cause));
    throw cause;
  }
  bootstrap.set_call({});
}

void Communicator::State::set_up(int stood_for, Here here) {
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  require_same_heartbeat(bootstrap, options, here);
  const std::vector<Wishes> all = bootstrap.all_gather(wishes);
  require_same_wishes(all, rank, here);
  const Places places = find_places(bootstrap, hosts_of(bootstrap.placements(), all), Presence::own(options, stood_for),
                                    topology_file(options), here);
  stands_for = places.device_of(rank);
  const std::vector<int>& hosts = places.hosts;
  std::vector<int> members;
  for (int other = 0; other < nranks; ++other) {
    if (hosts[static_cast<std::size_t>(other)] == hosts[static_cast<std::size_t>(rank)]) members.push_back(other);
  }
  site.nranks = nranks;
  // Without shared memory a relay would be a second way through the network.
  const std::set<int> apart(hosts.begin(), hosts.end());
  site.hosts = wishes.transport == Transport::kNet ? nranks : static_cast<int>(apart.size());
  const Crowds crowds = find_crowds(bootstrap, places.ranks);
  set_channels(wishes, hosts, crowds.anywhere, site);
  const bool whole = members.size() == static_cast<std::size_t>(nranks);
  if (nranks == 1 || (wishes.transport == Transport::kAuto && members.size() > 1))
    host.emplace(bootstrap, members, site.max_channels);
  all_share = host && whole;
  if (all_share) memory.emplace(bootstrap, options.direct);
  formations = agree_on_formations(bootstrap, places, site.max_channels, here);
  const std::int64_t timeout = std::chrono::nanoseconds(options.timeout).count();
  links.emplace(bootstrap, host ? &*host : nullptr, line_options(options), timeout, site.max_channels);
  site.rates = measure_links(bootstrap, *links, bootstrap.call().deadline_ns);
  seat = std::make_shared<LedgerSlot>(LedgerSlot::Identity{bootstrap.id(), rank, nranks, device.info().name});
  monitor = std::make_shared<CallMonitor>(seat);
  bootstrap.set_monitor(monitor);
  const SharedCalls::Shared shared{host ? &*host : nullptr, memory ? &*memory : nullptr};
  cores_each = crowds.cores_each;
  calls.emplace(bootstrap, shared, *links, *seat, cores_each < 1, timeout);
  sim = SimRanks::meet(bootstrap, device, {site, formations, wishes.algorithm, wishes.deterministic}, here);
  calls->in_turns = sim != nullptr;
  calls->history = &monitor->history;
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

bool Communicator::State::is_shared(const Call& call) const {
  return all_share && (bootstrap.nranks() == 1 || wishes.algorithm == Algorithm::kAuto ||
                       wishes.algorithm == Algorithm::kDirect || find_recipe(wishes.algorithm, call.kind) == nullptr);
}

Choice Communicator::State::choice_of(const Call& call, bool explain) const {
  return choose(call, site, wishes.algorithm, wishes.deterministic, explain);
}

// On devices that run no functions the ranks only meet.
void Communicator::State::make_plan(const Call& asked, bool in_place, CallPlan& plan) {
  static const Call kMeet;
  const Call& call = moves_bytes() ? asked : kMeet;
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  if (is_shared(call)) {
    plan.emplace<HostPlan>(call, next_shared, chunks, rank, nranks);
    return;
  }
  const bool explain = env().debugs("tune");
  const Choice choice = choice_of(call, explain);
  if (explain && rank == 0 && explained.insert(choice.text).second) log_line(choice.text);
  plan.emplace<MessagePlan>(*choice.recipe, Task{call, rank, nranks, in_place, choice.chunk_bytes},
                            std::span(formations).first(static_cast<std::size_t>(choice.channels)));
}

std::uint64_t Communicator::State::start_run(SharedRun& run, Op& op, StreamState& stream, Door& door) {
  std::uint64_t position = 0;
  op.exchange = sim ? static_cast<Exchange*>(&in_virtual_time(run)) : &run;
  try {
    position = door(stream, op);
  } catch (...) {
    run.free.store(true, std::memory_order_relaxed);  // relaxed: guarded by the mutex
    throw;
  }
  seat->enqueue(turn, stream.id.load(std::memory_order_relaxed), op.cost.bytes);  // relaxed: it was checked
  ++turn;
  return position;
}

std::uint64_t Communicator::State::start_call(const Call& call, Op& op, StreamState& stream, Door& door) {
  const Range* const from = op.reads.empty() ? nullptr : &op.reads[0];
  const Range* const to = op.writes.empty() ? nullptr : &op.writes[0];
  std::byte* const output = to ? address(*to) : nullptr;
  const std::byte* const input = from ? address(*from) : nullptr;
  const std::uint64_t own = static_cast<std::uint64_t>(bootstrap.rank()) * call.block_bytes();
  const bool in_place = from && to && is_in_place(*to, *from, own);
  SharedRun& run = take_run();
  make_plan(call, in_place, run.plan());
  const auto* const shared = std::get_if<HostPlan>(&run.plan());
  const std::uint64_t filled = shared ? shared->chunks() : 0;  // the run may be another call's once it is started
  const bool hidden = (from && is_hidden(*from)) || (to && is_hidden(*to));
  run.prepare(call, turn, next, {output, input, hidden});
  if (sim) in_virtual_time(run).prepare(turn, {call, {from ? *from : Range{}, to ? *to : Range{}, in_place}, {}});
  const Signature signature = run.signature();
  const std::uint64_t position = start_run(run, op, stream, door);
  monitor->history.add(signature, next);
  ++next;
  if (shared) ++next_shared;
  chunks += filled;
  return position;
}

std::uint64_t Communicator::State::start_letters(SharedRun& run, Op& op, StreamState& stream, Door& door) {
  const Range *from = op.reads.begin(), *to = op.writes.begin();
  std::uint64_t bytes = 0;
  std::vector<SimCall::Letter> simulated;
  for (Parcel& parcel : run.parcels) {
    Range range;
    if (parcel.bytes > 0) range = *(parcel.out ? from : to)++;
    if (sim) simulated.push_back({parcel.out, parcel.rank, range});
    bytes += parcel.bytes;
    if (!moves_bytes()) parcel.bytes = 0;
    if (parcel.bytes > 0) parcel.data = address(range);
  }
  run.plan().emplace<MessagePlan>(run.parcels);
  run.prepare({.kind = Collective::kMessage, .type = DataType::kU8, .elements = bytes}, turn, 0, {});
  if (sim) in_virtual_time(run).prepare(turn, {{.kind = Collective::kMessage}, {}, std::move(simulated)});
  return start_run(run, op, stream, door);
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
  require_not_finalized(here);
}

void Communicator::State::require_not_finalized(Here here) const {
  if (finalized.load(std::memory_order_relaxed))
    throw Error(Code::kInvalidHandle, "the communicator was finalized: it can only be destroyed", here);
}

void Communicator::State::fail(Code code, const std::string& text) noexcept {
  try {
    seat->fail(LedgerLife::kFailed, text);
    if (!host || host->fail(code, text)) bootstrap.fail(code, text);
  } catch (const std::exception&) {                         // no memory for the text: it ends all the same
    calls->aborted.store(true, std::memory_order_relaxed);  // relaxed: nothing is passed with it
    bootstrap.abort();
  }
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
  if (state.core->info.world != world) [[unlikely]]
    require_device(*state.core, name.text(), here);
  if (has_root(call.kind) && (call.root < 0 || call.root >= nranks))
    throw Error(Code::kInvalidValue, fmt::format("{}: root {} of {} ranks", name.text(), call.root, nranks), here);
  if (reduces(call.kind) && !can_reduce(call.type))
    throw Error(Code::kInvalidValue,
                fmt::format("{}: values of {} cannot be reduced", name.text(), data_type_name(call.type)), here);
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
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * call.block_bytes();
  if (in > 0 && out > 0 && overlap(to, from) && !is_in_place(to, from, own))
    throw Error(
        Code::kInvalidValue,
        fmt::format("{}: bytes {} to {} of buffer '{}' are read, and {} to {} written: they may be the same, but "
                    "not overlap otherwise",
                    name.text(), from.offset, from.offset + from.bytes, from.block->name.text(), to.offset,
                    to.offset + to.bytes),
        here);
  Op op{.kind = OpKind::kExchange,
        .engine = Engine::kCommunication,
        .name = name,
        .here = here,
        .reads = std::span<const Range>(reads, read),
        .writes = std::span<const Range>(writes, written),
        .cost = {.bytes = in + out}};
  if (state.capture.load(std::memory_order_relaxed)) return capture(state, op, call, {});
  const std::lock_guard lock(mutex);
  start_call(call, op, state, issue);
}

}  // namespace slip
