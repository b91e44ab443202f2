#include "slip/communicator.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <set>

#include "base/fail.hpp"
#include "base/thread.hpp"
#include "comm/api/communicator_state.hpp"
#include "comm/reduce/reduce.hpp"
#include "transport/bootstrap/recovery.hpp"
#include "transport/job/launch_info.hpp"

namespace slip {
namespace {

constexpr const char* kMovedFrom = "the communicator was moved from: use the one that it was moved to";

// This rank's factor as a value of the data type; zero bytes for reductions without a factor.
comm::ReduceScale factor_of(const ReduceSpec& how, DataType type, Here here) {
  if (how.op != ReduceOp::kPreMulSum) return {};
  if (!how.factor)
    throw Error(ErrorCode::kInvalidValue,
                "premulsum needs this rank's factor: pass slip::premul_sum(factor), or call all_reduce_scaled", here);
  return comm::scale_of(type, *how.factor, here);
}

// `bytes`: of a block.
comm::Call reduction(comm::Collective kind, DataType type, const ReduceSpec& how, std::uint64_t bytes, Here here) {
  return {.kind = kind,
          .type = type,
          .op = how.op,
          .elements = bytes / bytes_of(type),
          .scale = factor_of(how, type, here)};
}
comm::Call movement(comm::Collective kind, std::uint64_t bytes, int root = 0) {
  return {.kind = kind, .type = DataType::kU8, .root = root, .elements = bytes};
}

struct SplitChoice {
  std::int32_t color = 0, key = 0;
};

// Where the first rank of a colour listens for the ranks of its group. It sends this to all ranks of the parent.
struct GroupRoot {
  UniqueId id;
  char failure[256] = {};  // why that rank could not listen, if `id` is not valid
};

struct SplitGroup {
  transport::Membership membership;
  std::set<int> members;  // ranks of the parent
};

// The ranks that make a new communicator together: those with the same colour, in the order of their keys. All ranks of
// the bootstrap call it. Returns nothing for a colour below 0.
std::optional<SplitGroup> split_group(transport::Bootstrap& bootstrap, int color, int key,
                                      const transport::SetupCall& call) {
  const std::vector<SplitChoice> choices = bootstrap.all_gather(SplitChoice{color, key}, call);
  std::vector<int> members;
  for (int rank = 0; rank < bootstrap.nranks(); ++rank) {
    if (choices[static_cast<std::size_t>(rank)].color == color) members.push_back(rank);
  }
  std::ranges::stable_sort(members, {}, [&](int rank) { return choices[static_cast<std::size_t>(rank)].key; });
  GroupRoot own;
  if (color >= 0 && members.front() == bootstrap.rank()) {
    try {
      own.id = transport::make_root(bootstrap);
    } catch (const std::exception& error) {  // the all_gather below passes it to the ranks that wait for the root
      std::string_view(error.what()).copy(own.failure, sizeof(own.failure) - 1);
    }
  }
  const std::vector<GroupRoot> roots = bootstrap.all_gather(own, call);
  if (color < 0) return std::nullopt;
  const GroupRoot& root = roots[static_cast<std::size_t>(members.front())];
  if (!root.id.valid())
    base::fail(ErrorCode::kIo, {}, "rank {}, the first of colour {}, could not listen for its group: {}",
               members.front(), color, root.failure);
  const auto place = std::find(members.begin(), members.end(), bootstrap.rank()) - members.begin();
  return SplitGroup{
      {transport::with_secret(bootstrap, root.id), static_cast<int>(place), static_cast<int>(members.size())},
      {members.begin(), members.end()}};
}

// Runs `make`. If a member of the group is lost or fails in the parent, the waits of `make` end with an error. This
// function then throws the cause that the parent's failure detector has found.
void make_in_parent(transport::Bootstrap& parent, const SplitGroup& group, const transport::MakeCommunicator& make) {
  const auto abort = std::make_shared<transport::AbortFlag>();
  parent.failures().on_trouble(abort, group.members);
  struct Registration {
    transport::Bootstrap& parent;
    ~Registration() { parent.failures().on_trouble(nullptr, {}); }
  } const registration{parent};
  try {
    make(group.membership, abort);
  } catch (const Error& error) {
    throw parent.with_cause(error);
  }
}

// Allocates memory of this process, not shared memory. As with shared memory, all ranks synchronise before they
// allocate, and return when all have their memory. If one rank gets none, all ranks throw kOutOfMemory; otherwise the
// others would wait for that rank in a later call.
Buffer allocate_ordinary(transport::Bootstrap& bootstrap, const transport::SetupCall& call, std::size_t bytes,
                         Here here, const std::function<Buffer()>& alloc) {
  const std::vector<std::uint64_t> wanted = bootstrap.all_gather(std::uint64_t{bytes}, call);
  Buffer result;
  std::string why;  // empty: this rank got its memory
  try {
    if (bytes > 0) result = alloc();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    why = base::bare_text(error);
  }
  comm::require_memory_of_all(bootstrap, call, wanted, why, "memory", here);
  return result;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<State> state) : state_(std::move(state)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (state_) state_->drain();
  state_ = std::move(other.state_);
  return *this;
}

Communicator::~Communicator() {
  if (state_) state_->drain();
}

Communicator::State& Communicator::state(Here here) const {
  if (!state_) [[unlikely]]
    throw Error(ErrorCode::kInvalidHandle, kMovedFrom, here);
  return *state_;
}

Communicator Communicator::init(const UniqueId& id, int nranks, int rank, const Device& device,
                                const CommunicatorOptions& options, Here here) {
  comm::require_rank_device(device.info(), "a communicator", here);
  comm::check_options(options, nranks, here);
  return Communicator(std::make_shared<State>(transport::Membership{id, rank, nranks}, device, options, here));
}

Communicator Communicator::init(const Device& device, const CommunicatorOptions& options, Here here) {
  if (const std::optional<transport::LaunchInfo> launched = transport::launch_info())
    return init(launched->id, launched->nranks, launched->rank, device, options, here);
  comm::check_options(options, 1, here);
  return init(UniqueId::create({.host = "127.0.0.1", .lifetime = options.init_timeout}), 1, 0, device, options, here);
}

std::vector<Communicator> Communicator::init_all(std::span<const Device> devices, const CommunicatorOptions& options,
                                                 Here here) {
  const auto nranks = static_cast<int>(devices.size());
  if (nranks == 0) throw Error(ErrorCode::kInvalidValue, "init_all: no devices", here);
  comm::check_options(options, nranks, here);
  const UniqueId id = UniqueId::create({.host = "127.0.0.1", .lifetime = options.init_timeout});
  std::vector<std::optional<Communicator>> made(devices.size());
  base::run_threads("slip-init", devices.size(), [&](std::size_t i) {
    made[i].emplace(init(id, nranks, static_cast<int>(i), devices[i], options, here));
  });
  std::vector<Communicator> result;
  for (auto& one : made) result.push_back(std::move(*one));
  return result;
}

int Communicator::rank() const { return state().bootstrap.rank(); }
int Communicator::nranks() const { return state().bootstrap.nranks(); }

std::optional<Communicator> Communicator::split(int color, int key, Here here) {
  state(here).require_usable(here);
  std::shared_ptr<State> made;
  const auto make = [&](const transport::Membership& group, const std::shared_ptr<transport::AbortFlag>& abort) {
    made = std::make_shared<State>(group, state_->device, state_->options, here, abort, state_->topology_device);
  };
  try {
    transport::Bootstrap& parent = state_->bootstrap;
    const std::optional<SplitGroup> group = split_group(parent, color, key, parent.begin(transport::SetupKind::kSplit));
    if (!group) return std::nullopt;
    make_in_parent(parent, *group, make);
  } catch (const Error& error) {
    fail(error.code(), base::bare_text(error));  // so that the other ranks do not wait for this one
    throw;
  }
  return Communicator(std::move(made));
}

Communicator Communicator::shrink(const std::vector<int>& excluded, Here here) {
  state(here).require_not_finalized(here);
  std::shared_ptr<State> made;
  const auto make = [&](const transport::Membership& group, const std::shared_ptr<transport::AbortFlag>& abort) {
    made.reset();  // recover() calls `make` again if another rank failed meanwhile
    made = std::make_shared<State>(group, state_->device, state_->options, here, abort, state_->topology_device);
  };
  transport::recover(state_->bootstrap, excluded, make);
  return Communicator(std::move(made));
}

void Communicator::finalize(Here here) { state(here).finalize(here); }

std::optional<Error> Communicator::error() const {
  if (!state_) return Error(ErrorCode::kInvalidHandle, kMovedFrom, {});
  return state_->error();
}

SharedBuffer Communicator::allocate(std::size_t bytes, Name name, Here here) {
  state(here).require_usable(here);
  const base::LockGuard lock(state_->allocating);
  SharedBuffer result;
  const bool is_shared = state_->memory && !state_->memory->one_process() && !state_->gpu;
  try {
    const transport::SetupCall call = state_->bootstrap.begin(transport::SetupKind::kAllocate);
    if (is_shared) {
      result.part_ = state_->memory->allocate(bytes, call, here);
    } else {
      const MemoryKind kind = state_->gpu ? MemoryKind::kDevice : MemoryKind::kPinned;
      result.buffer_ = allocate_ordinary(state_->bootstrap, call, bytes, here,
                                         [&] { return state_->device.alloc(bytes, kind, name, here); });
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory)
      fail(error.code(), base::bare_text(error));  // out of memory: all ranks throw it
    throw;
  }
  if (result.part_) result.buffer_ = state_->device.wrap(result.part_->data(), bytes, MemoryKind::kPinned, name, here);
  return result;
}

void Communicator::abort() noexcept {
  if (!state_) return;
  state_->calls.aborted.store(true, std::memory_order_relaxed);  // relaxed: no other data is published with it
  state_->ledger_slot->fail(transport::LedgerLife::kAborted, "by its own program");
  state_->bootstrap.abort();
}

void Communicator::fail(ErrorCode code, const std::string& text) noexcept {
  if (state_) state_->fail(code, text);
}

void Communicator::all_reduce(Range to, Range from, DataType type, ReduceSpec how, StreamRef stream, Here here) {
  state(here).issue_call(reduction(comm::Collective::kAllReduce, type, how, from.bytes, here), to, from, stream, here);
}

void Communicator::all_reduce_scaled(Range to, Range from, DataType type, double factor, StreamRef stream, Here here) {
  all_reduce(to, from, type, premul_sum(factor), stream, here);
}

void Communicator::reduce(Range to, Range from, DataType type, ReduceSpec how, int root, StreamRef stream, Here here) {
  comm::Call call = reduction(comm::Collective::kReduce, type, how, from.bytes, here);
  call.root = root;
  state(here).issue_call(call, to, from, stream, here);
}

void Communicator::reduce_scatter(Range to, Range from, DataType type, ReduceSpec how, StreamRef stream, Here here) {
  state(here).issue_call(reduction(comm::Collective::kReduceScatter, type, how, to.bytes, here), to, from, stream,
                         here);
}

void Communicator::broadcast(Range to, Range from, int root, StreamRef stream, Here here) {
  state(here).issue_call(movement(comm::Collective::kBroadcast, to.bytes, root), to, from, stream, here);
}

void Communicator::all_gather(Range to, Range from, StreamRef stream, Here here) {
  state(here).issue_call(movement(comm::Collective::kAllGather, from.bytes), to, from, stream, here);
}

void Communicator::gather(Range to, Range from, int root, StreamRef stream, Here here) {
  state(here).issue_call(movement(comm::Collective::kGather, from.bytes, root), to, from, stream, here);
}

void Communicator::scatter(Range to, Range from, int root, StreamRef stream, Here here) {
  state(here).issue_call(movement(comm::Collective::kScatter, to.bytes, root), to, from, stream, here);
}

void Communicator::all_to_all(Range to, Range from, StreamRef stream, Here here) {
  const auto n = static_cast<std::uint64_t>(state(here).bootstrap.nranks());
  state(here).issue_call(movement(comm::Collective::kAllToAll, from.bytes / n), to, from, stream, here);
}

void Communicator::barrier(StreamRef stream, Here here) {
  state(here).issue_call(movement(comm::Collective::kBarrier, 0), {}, {}, stream, here);
}

void Communicator::send(Range buffer, int peer, StreamRef stream, Here here) {
  comm::submit_or_keep(state(here), {true, peer, buffer, stream, here});
}

void Communicator::recv(Range buffer, int peer, StreamRef stream, Here here) {
  comm::submit_or_keep(state(here), {false, peer, buffer, stream, here});
}

void Communicator::all_to_all_v(std::span<const Range> to, std::span<const Range> from, StreamRef stream, Here here) {
  const auto n = static_cast<std::size_t>(state(here).bootstrap.nranks());
  if (to.size() != n || from.size() != n)
    base::fail(ErrorCode::kInvalidValue, here,
               "all_to_all_v: {} blocks to send and {} to receive; expected {} of each, one for each rank", from.size(),
               to.size(), n);
  Group group;
  for (std::size_t step = 0; step < n; ++step) {
    const std::size_t next = (static_cast<std::size_t>(rank()) + step) % n;
    const std::size_t before = (static_cast<std::size_t>(rank()) + n - step) % n;
    send(from[next], static_cast<int>(next), stream, here);
    recv(to[before], static_cast<int>(before), stream, here);
  }
  group.end();
}

std::string engine_of(const Communicator& communicator) {
  const Communicator::State& state = communicator.state();
  return state.gpu ? state.gpu->engine() : "Slipstream";
}

const char* algorithm_name(Algorithm algorithm) {
  constexpr const char* kNames[] = {"auto", "direct", "ring", "tree", "doubling", "relay"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Algorithm::kRelay) + 1);
  return algorithm <= Algorithm::kRelay ? kNames[static_cast<std::size_t>(algorithm)] : "unknown";
}

}  // namespace slip
