#include "slip/communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>

#include "base/small_floats.hpp"
#include "base/thread.hpp"
#include "comm/shared_run.hpp"
#include "runtime/core.hpp"
#include "transport/launch_info.hpp"

namespace slip {
namespace {

BootstrapOptions bootstrap_options(const CommunicatorOptions& options) {
  BootstrapOptions result;
  result.timeout = options.init_timeout;
  return result;
}

void require_one_host(const Bootstrap& bootstrap, Here here) {
  const std::vector<Placement>& placements = bootstrap.placements();
  for (int rank = 0; rank < bootstrap.nranks(); ++rank) {
    const Placement& other = placements[static_cast<std::size_t>(rank)];
    if (same_host(other, placements.front())) continue;
    throw Error(Code::kUnsupported,
                fmt::format("rank {} is on host '{}' and rank 0 on '{}': ranks of several hosts are not supported yet",
                            rank, other.host, placements.front().host),
                here);
  }
}

// Made once: a name is looked up when it is made.
Name name_of(Collective kind) {
  static const auto kNames = [] {
    std::array<Name, static_cast<std::size_t>(Collective::kBarrier) + 1> names;
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = Name(collective_name(static_cast<Collective>(i)));
    return names;
  }();
  return kNames[static_cast<std::size_t>(kind)];
}

// Memory that only the ops of its device may touch.
bool is_hidden(const Range& range) {
  return range.block->kind == MemoryKind::kDevice && range.block->core->options.strict;
}

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

struct Communicator::State {
  State(const UniqueId& id, int nranks, int rank, const Device& on, const CommunicatorOptions& options, Here here)
      : device(on), bootstrap(id, nranks, rank, bootstrap_options(options)) {
    require_one_host(bootstrap, here);
    host.emplace(bootstrap);
    memory.emplace(bootstrap, options.direct);
    calls.emplace(*host, *memory, bootstrap, std::chrono::nanoseconds(options.timeout).count());
  }

  SharedRun& take_run() {
    for (const auto& run : runs) {
      // acquire: the call that used it has left it.
      if (run->free.load(std::memory_order_relaxed) && run->free.exchange(false, std::memory_order_acquire))
        return *run;
    }
    runs.push_back(std::make_unique<SharedRun>(*calls));
    runs.back()->free.store(false, std::memory_order_relaxed);  // relaxed: nobody else knows it
    return *runs.back();
  }

  void issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here);

  const Device device;
  Bootstrap bootstrap;
  std::optional<SharedHost> host;
  std::optional<SharedMemory> memory;
  std::mutex allocating;  // keeps the order of allocations the same on all ranks
  std::optional<SharedCalls> calls;
  std::mutex mutex;          // guards what follows, and keeps the order of calls the same in numbers and in the stream
  std::uint64_t next = 1;    // number of the next call
  std::uint64_t chunks = 0;  // of all calls so far
  std::vector<std::unique_ptr<SharedRun>> runs;
};

// Sizes are those that the call's blocks say; a range that does not count for this rank is left out.
void Communicator::State::issue_call(const Call& call, Range to, Range from, StreamRef stream, Here here) {
  StreamState& state = *stream.state(here);
  const int rank = host->rank(), nranks = host->nranks();
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
  const std::lock_guard lock(mutex);
  SharedRun& run = take_run();
  const std::uint64_t here_too =
      run.prepare(call, next, chunks, out > 0 ? address(to) : nullptr, in > 0 ? address(from) : nullptr,
                  (in > 0 && is_hidden(from)) || (out > 0 && is_hidden(to)));
  try {
    issue(state, {.kind = OpKind::kExchange,
                  .name = name,
                  .here = here,
                  .reads = std::span<const Range>(reads, read),
                  .writes = std::span<const Range>(writes, written),
                  .cost = {.bytes = in + out},
                  .exchange = &run});
  } catch (...) {
    run.free.store(true, std::memory_order_relaxed);  // relaxed: guarded by the mutex
    throw;
  }
  ++next;
  chunks += here_too;
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

int Communicator::rank() const { return state_->host->rank(); }
int Communicator::nranks() const { return state_->host->nranks(); }

SharedBuffer Communicator::allocate(std::size_t bytes, Name name, Here here) {
  const std::lock_guard lock(state_->allocating);
  SharedBuffer result;
  if (state_->memory->one_process()) {
    state_->bootstrap.barrier();  // as it is between processes
    if (bytes > 0) result.buffer_ = state_->device.alloc(bytes, MemoryKind::kPinned, name, here);
    return result;
  }
  result.part_ = state_->memory->allocate(bytes, here);
  if (result.part_) result.buffer_ = state_->device.wrap(result.part_->data(), bytes, MemoryKind::kPinned, name, here);
  return result;
}

void Communicator::abort() noexcept {
  state_->calls->aborted.store(true, std::memory_order_relaxed);  // relaxed: nothing is passed with it
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

}  // namespace slip
