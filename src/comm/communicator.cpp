#include "slip/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/biased_lock.hpp"
#include "base/clock.hpp"
#include "base/cores.hpp"
#include "base/env.hpp"
#include "base/log.hpp"
#include "base/small_floats.hpp"
#include "base/thread.hpp"
#include "comm/group.hpp"
#include "comm/measure_links.hpp"
#include "comm/shared_run.hpp"
#include "comm/tuning.hpp"
#include "runtime/core.hpp"
#include "transport/launch_info.hpp"

namespace slip {
namespace {

BootstrapOptions bootstrap_options(const CommunicatorOptions& options) {
  BootstrapOptions result;
  result.timeout = options.init_timeout;
  return result;
}

std::uint64_t hash_of(std::string_view text) {  // FNV-1a: the same in all processes
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

// What is asked for, by option or by the environment.
struct Wishes {
  Algorithm algorithm = Algorithm::kAuto;
  Transport transport = Transport::kAuto;
  bool deterministic = false;
  std::uint64_t host = 0;  // may differ

  static Wishes of(const CommunicatorOptions& options, Here here) {
    Wishes result{options.algorithm, options.transport, options.deterministic, 0};
    if (const std::string& name = env().algorithm; !name.empty() && result.algorithm == Algorithm::kAuto)
      result.algorithm = algorithm_called(name, here);
    if (const std::string& name = env().transport; !name.empty() && result.transport == Transport::kAuto)
      result.transport = transport_called(name, here);
    const std::string& host = options.host.empty() ? env().host_id : options.host;
    if (!host.empty()) result.host = hash_of(host);
    return result;
  }
  std::string text() const {
    return fmt::format("algorithm {}, transport {}, {}", algorithm_name(algorithm),
                       transport == Transport::kNet ? "net" : "auto",
                       deterministic ? "deterministic" : "not deterministic");
  }

 private:
  static Algorithm algorithm_called(const std::string& name, Here here) {
    for (int i = 0; i <= static_cast<int>(Algorithm::kDoubling); ++i) {
      if (name == algorithm_name(static_cast<Algorithm>(i))) return static_cast<Algorithm>(i);
    }
    throw Error(Code::kInvalidValue,
                fmt::format("SLIP_ALGORITHM={}: auto, direct, ring, tree or doubling is expected", name), here);
  }
  static Transport transport_called(const std::string& name, Here here) {
    if (name == "auto") return Transport::kAuto;
    if (name == "net") return Transport::kNet;
    throw Error(Code::kInvalidValue, fmt::format("SLIP_TRANSPORT={}: auto or net is expected", name), here);
  }
};

void require_same_wishes(const std::vector<Wishes>& all, int rank, Here here) {
  for (std::size_t other = 0; other < all.size(); ++other) {
    const Wishes& mine = all[static_cast<std::size_t>(rank)];
    if (all[other].algorithm == mine.algorithm && all[other].transport == mine.transport &&
        all[other].deterministic == mine.deterministic)
      continue;
    throw Error(Code::kMismatch,
                fmt::format("rank {} asks for {}, rank {} for {}: all ranks of a communicator need the same options",
                            rank, mine.text(), other, all[other].text()),
                here);
  }
}

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

void require_no_factor(ReduceOp op, Here here) {
  if (op == ReduceOp::kPreMulSum)
    throw Error(Code::kInvalidValue, "premulsum needs this rank's factor: call all_reduce_scaled", here);
}

template <class T>
ReduceScale whole_scale(double factor, DataType type, Here here) {
  // Compared as doubles: 2^63 and 2^64, which the largest 64-bit numbers round to, do not fit.
  constexpr double kLeast = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double kTooLarge = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  if (!(factor >= kLeast && factor < kTooLarge))
    throw Error(Code::kInvalidValue,
                fmt::format("a factor of {} is no number of type {}", factor, data_type_name(type)), here);
  return ReduceScale::of(static_cast<T>(factor));
}

ReduceScale scale_of(DataType type, double factor, Here here) {
  switch (type) {
    case DataType::kU8: return whole_scale<std::uint8_t>(factor, type, here);
    case DataType::kI8: return whole_scale<std::int8_t>(factor, type, here);
    case DataType::kU32: return whole_scale<std::uint32_t>(factor, type, here);
    case DataType::kI32: return whole_scale<std::int32_t>(factor, type, here);
    case DataType::kU64: return whole_scale<std::uint64_t>(factor, type, here);
    case DataType::kI64: return whole_scale<std::int64_t>(factor, type, here);
    case DataType::kF16: return ReduceScale::of(from_float<F16>(static_cast<float>(factor)));
    case DataType::kBF16: return ReduceScale::of(from_float<Bf16>(static_cast<float>(factor)));
    case DataType::kF8E4M3: return ReduceScale::of(from_float<F8E4M3>(static_cast<float>(factor)));
    case DataType::kF8E5M2: return ReduceScale::of(from_float<F8E5M2>(static_cast<float>(factor)));
    case DataType::kF32: return ReduceScale::of(static_cast<float>(factor));
    case DataType::kF64: return ReduceScale::of(factor);
    case DataType::kBool:
    case DataType::kU16:
    case DataType::kI16: break;
  }
  throw Error(Code::kInvalidValue, fmt::format("values of {} cannot be reduced", data_type_name(type)), here);
}

}  // namespace

struct Communicator::State final : PostOffice {
  State(const UniqueId& id, int nranks, int rank, const Device& on, const CommunicatorOptions& options, Here here)
      : device(on), bootstrap(id, nranks, rank, bootstrap_options(options)), wishes(Wishes::of(options, here)) {
    const std::vector<Wishes> all = bootstrap.all_gather(wishes);
    require_same_wishes(all, rank, here);
    const std::vector<int> hosts = hosts_of(bootstrap.placements(), all);
    std::vector<int> members;
    for (int other = 0; other < nranks; ++other) {
      if (hosts[static_cast<std::size_t>(other)] == hosts[static_cast<std::size_t>(rank)]) members.push_back(other);
    }
    const bool whole = members.size() == static_cast<std::size_t>(nranks);
    if (wishes.transport == Transport::kAuto && (members.size() > 1 || whole)) host.emplace(bootstrap, members);
    all_share = host && whole;
    std::vector<int> order(static_cast<std::size_t>(nranks));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return hosts[static_cast<std::size_t>(a)] < hosts[static_cast<std::size_t>(b)];
    });
    formation = Formation::of(std::move(order));
    const std::int64_t timeout = std::chrono::nanoseconds(options.timeout).count();
    links.emplace(bootstrap, host ? &*host : nullptr, timeout);
    rates = measure_links(bootstrap, *links, now_ns() + std::chrono::nanoseconds(options.init_timeout).count());
    seat = std::make_shared<LedgerSeat>(LedgerSeat::Who{bootstrap.id(), rank, nranks, device.info().name});
    bootstrap.set_witness(seat);
    calls.emplace(bootstrap, host ? &*host : nullptr, *links, *seat, is_crowded(bootstrap), timeout);
  }

  SharedRun& take_run() {
    for (const auto& run : runs) {
      if (!load_acquire(run->free)) continue;             // acquire: the call that used it has left it
      run->free.store(false, std::memory_order_relaxed);  // relaxed: only who holds the lock takes one
      return *run;
    }
    runs.push_back(std::make_unique<SharedRun>(*calls));
    runs.back()->free.store(false, std::memory_order_relaxed);  // relaxed: nobody else knows it
    return *runs.back();
  }

  void issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here);
  void issue_letters(std::span<const Letter> letters, StreamRef stream) override;
  CallPlan plan_of(const Call& call, bool in_place);
  void issue_run(SharedRun& run, Name name, std::span<const Range> reads, std::span<const Range> writes,
                 StreamRef stream, Here here);

  const Device device;
  Bootstrap bootstrap;
  const Wishes wishes;
  std::shared_ptr<LedgerSeat> seat;
  std::optional<SharedHost> host;
  bool all_share = false;  // all ranks are of this host and share memory
  Formation formation;
  LinkRates rates;
  std::optional<Links> links;
  std::optional<SharedCalls> calls;
  BiasedLock mutex;        // guards what follows, and keeps the order of calls the same in numbers and in the stream
  std::uint64_t turn = 1;  // of the next call of this rank
  std::uint64_t next = 1;  // number of the next call of all ranks
  std::uint64_t next_shared = 1;  // and among those through shared memory
  std::uint64_t chunks = 0;       // of these so far
  std::vector<std::unique_ptr<SharedRun>> runs;
};

CallPlan Communicator::State::plan_of(const Call& call, bool in_place) {
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const bool own_way = wishes.algorithm == Algorithm::kAuto || wishes.algorithm == Algorithm::kDirect ||
                       find_recipe(wishes.algorithm, call.kind) == nullptr;
  if (all_share && own_way) return SharedPlan(call, next_shared, chunks, rank, nranks);
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

// Sizes are those that the call's blocks say; a range that does not count for this rank is left out.
void Communicator::State::issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here) {
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
  run.prepare(call, plan, turn, next, output, input);
  issue_run(run, name, {reads, read}, {writes, written}, stream, here);
  ++next;
  if (const auto* shared = std::get_if<SharedPlan>(&plan)) {
    ++next_shared;
    chunks += shared->chunks();
  }
}

// Those to itself are copies: the first send goes to the first receive, and so on.
void Communicator::State::issue_letters(std::span<const Letter> letters, StreamRef stream) {
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  std::vector<Range> reads, writes, own_out, own_in;
  std::vector<Parcel> parcels;
  std::uint64_t bytes = 0;
  for (const Letter& letter : letters) {
    const Name name(letter.out ? "send" : "recv");
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
    (letter.out ? reads : writes).push_back(letter.range);
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
  const std::lock_guard lock(mutex);
  SharedRun& run = take_run();
  run.parcels = std::move(parcels);
  run.prepare({.kind = Collective::kMessage, .type = DataType::kU8, .elements = bytes}, MessagePlan(run.parcels), turn,
              0, nullptr, nullptr);
  issue_run(run, name_of(Collective::kMessage), reads, writes, stream, here);
}

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Communicator::~Communicator() {
  if (!state_) return;
  // All of its calls have been given back when the device has done what was issued.
  const auto busy = [&] {
    for (const auto& run : state_->runs) {
      if (!run->free.load(std::memory_order_acquire)) return true;
    }
    return false;
  };
  for (int turn = 0; busy(); ++turn) {
    try {
      state_->device.sync();
    } catch (const Error&) {  // was told where it happened
    }
    spin(turn);
  }
}

Communicator Communicator::init(const UniqueId& id, int nranks, int rank, const Device& device,
                                const CommunicatorOptions& options, Here here) {
  if (device.info().name != "cpu" && !device.info().name.starts_with("cpu:"))
    throw Error(
        Code::kUnsupported,
        fmt::format("a communicator on device '{}': only ranks on cpu devices are supported yet", device.info().name),
        here);
  return Communicator(std::make_unique<State>(id, nranks, rank, device, options, here));
}

Communicator Communicator::init(const Device& device, const CommunicatorOptions& options, Here here) {
  if (const std::optional<LaunchInfo> launched = launch_info())
    return init(launched->id, launched->nranks, launched->rank, device, options, here);
  return init(UniqueId::create({.host = "127.0.0.1", .lifetime = options.init_timeout}), 1, 0, device, options, here);
}

std::vector<Communicator> Communicator::init_all(std::span<const Device> devices, const CommunicatorOptions& options,
                                                 Here here) {
  const auto nranks = static_cast<int>(devices.size());
  if (nranks == 0) throw Error(Code::kInvalidValue, "init_all: no devices", here);
  const UniqueId id = UniqueId::create({.host = "127.0.0.1", .lifetime = options.init_timeout});
  std::vector<std::optional<Communicator>> made(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  {
    std::vector<Thread> threads(devices.size());
    for (std::size_t i = 0; i < devices.size(); ++i) {
      threads[i].start(fmt::format("slip-init-{}", i), [&, i] {
        try {
          made[i].emplace(init(id, nranks, static_cast<int>(i), devices[i], options, here));
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
    for (Thread& thread : threads) thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  std::vector<Communicator> result;
  for (auto& one : made) result.push_back(std::move(*one));
  return result;
}

int Communicator::rank() const { return state_->bootstrap.rank(); }
int Communicator::nranks() const { return state_->bootstrap.nranks(); }

void Communicator::abort() noexcept {
  state_->calls->aborted.store(true, std::memory_order_relaxed);  // relaxed: nothing is passed with it
  state_->seat->fail(LedgerLife::kAborted, "by its own program");
  state_->bootstrap.abort();
}

void Communicator::all_reduce(Range to, Range from, DataType type, ReduceOp op, StreamRef stream, Here here) {
  require_no_factor(op, here);
  state_->issue_call({.kind = Collective::kAllReduce, .type = type, .op = op, .elements = from.bytes / bytes_of(type)},
                     to, from, stream, here);
}

void Communicator::all_reduce_scaled(Range to, Range from, DataType type, double factor, StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kAllReduce,
                      .type = type,
                      .op = ReduceOp::kPreMulSum,
                      .elements = from.bytes / bytes_of(type),
                      .scale = scale_of(type, factor, here)},
                     to, from, stream, here);
}

void Communicator::reduce(Range to, Range from, DataType type, ReduceOp op, int root, StreamRef stream, Here here) {
  require_no_factor(op, here);
  state_->issue_call(
      {.kind = Collective::kReduce, .type = type, .op = op, .root = root, .elements = from.bytes / bytes_of(type)}, to,
      from, stream, here);
}

void Communicator::reduce_scatter(Range to, Range from, DataType type, ReduceOp op, StreamRef stream, Here here) {
  require_no_factor(op, here);
  state_->issue_call(
      {.kind = Collective::kReduceScatter, .type = type, .op = op, .elements = to.bytes / bytes_of(type)}, to, from,
      stream, here);
}

void Communicator::broadcast(Range to, Range from, int root, StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kBroadcast, .type = DataType::kU8, .root = root, .elements = to.bytes}, to,
                     from, stream, here);
}

void Communicator::all_gather(Range to, Range from, StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kAllGather, .type = DataType::kU8, .elements = from.bytes}, to, from, stream,
                     here);
}

void Communicator::gather(Range to, Range from, int root, StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kGather, .type = DataType::kU8, .root = root, .elements = from.bytes}, to,
                     from, stream, here);
}

void Communicator::scatter(Range to, Range from, int root, StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kScatter, .type = DataType::kU8, .root = root, .elements = to.bytes}, to,
                     from, stream, here);
}

void Communicator::all_to_all(Range to, Range from, StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kAllToAll,
                      .type = DataType::kU8,
                      .elements = from.bytes / static_cast<std::uint64_t>(nranks())},
                     to, from, stream, here);
}

void Communicator::barrier(StreamRef stream, Here here) {
  state_->issue_call({.kind = Collective::kBarrier, .type = DataType::kU8}, {}, {}, stream, here);
}

void Communicator::send(Range from, int to, StreamRef stream, Here here) {
  take_letter(*state_, {true, to, from, stream, here});
}

void Communicator::recv(Range to, int from, StreamRef stream, Here here) {
  take_letter(*state_, {false, from, to, stream, here});
}

void Communicator::all_to_all_v(std::span<const Range> to, std::span<const Range> from, StreamRef stream, Here here) {
  const auto n = static_cast<std::size_t>(nranks());
  if (to.size() != n || from.size() != n)
    throw Error(Code::kInvalidValue,
                fmt::format("all_to_all_v: {} blocks to send and {} to receive; expected {} of each, one for each rank",
                            from.size(), to.size(), n),
                here);
  Group group;
  for (std::size_t step = 0; step < n; ++step) {
    const std::size_t next = (static_cast<std::size_t>(rank()) + step) % n;
    const std::size_t before = (static_cast<std::size_t>(rank()) + n - step) % n;
    send(from[next], static_cast<int>(next), stream, here);
    recv(to[before], static_cast<int>(before), stream, here);
  }
  group.end();
}

const char* algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto: return "auto";
    case Algorithm::kDirect: return "direct";
    case Algorithm::kRing: return "ring";
    case Algorithm::kTree: return "tree";
    case Algorithm::kDoubling: return "doubling";
  }
  return "unknown";
}

}  // namespace slip
