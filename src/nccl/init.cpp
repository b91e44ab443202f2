// Communicators: made, split, shrunk, queried and ended.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>

#include "base/sync.hpp"
#include "nccl/api.hpp"
#include "nccl/comm.hpp"
#include "nccl/group.hpp"

namespace slip::nccl {
namespace {

// One rank of a new communicator, and the GPU that it uses.
struct NewRank {
  UniqueId id;
  int nranks = 0, rank = 0, gpu = 0;
};

// Throws if this process has used the id for this rank before. An id serves one communicator: a rank that uses it again
// would wait for a root that has ended.
void require_new_id(const NewRank& self) {
  using Bytes = std::array<std::byte, UniqueId::kBytes>;
  static base::Mutex mutex;
  static auto* const kUsed SLIP_PT_GUARDED_BY(mutex) = new std::set<std::pair<Bytes, int>>;
  std::pair<Bytes, int> entry{{}, self.rank};
  std::memcpy(entry.first.data(), self.id.bytes().data(), UniqueId::kBytes);
  const base::LockGuard lock(mutex);
  if (!kUsed->insert(entry).second)
    invalid_usage("the ncclUniqueId was already used by rank {} of this process: make a new one with ncclGetUniqueId",
                  self.rank);
}

UniqueId id_of(const ncclUniqueId& id) {
  try {
    return UniqueId::from_bytes(std::as_bytes(std::span<const char, UniqueId::kBytes>(id.internal)), kNoPlace);
  } catch (const Error&) {
    invalid_argument(
        "commId is not an id of this library: pass the bytes of ncclGetUniqueId to all ranks unchanged, and use the "
        "same libnccl.so.2 in all processes");
  }
}

void print_made(const char* function, const Comm& comm) {
  if (debugs(DebugLevel::kInfo))
    debug_line(fmt::format("INFO {}: rank {} of {} on {}{}", function, comm.rank(), comm.nranks(),
                           comm.device().device().info().name, comm.is_blocking() ? "" : ", non-blocking"));
}

void require_membership(int nranks, int rank) {
  if (nranks < 1) invalid_argument("nranks is {}: it must be positive", nranks);
  if (rank < 0 || rank >= nranks) invalid_argument("rank is {}: it must be 0 to {}", rank, nranks - 1);
}

ncclResult_t init_rank(const char* function, ncclComm_t* out, const NewRank& self, CommConfig config) {
  print_version_once();
  const bool blocking = config.blocking;
  auto device = std::make_shared<RankDevice>(self.gpu);
  Pin made = Pin::open(new Comm(std::move(device), self.rank, self.nranks, std::move(config)));
  *out = made.handle();
  Comm* const comm = &*made;
  return submit(Job{.function = function, .target = std::move(made), .out = out, .blocking = blocking, .body = [=] {
                      require_new_id(self);  // not earlier: if ncclGroupEnd refuses the group, the id stays unused
                      comm->set(Communicator::init(self.id, self.nranks, self.rank, comm->device().device(),
                                                   comm->config().options, kNoPlace));
                      print_made(function, *comm);
                    }});
}

ncclResult_t init_rank(const char* function, ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  return run_api(function, nullptr, [&] {
    require_pointer(out, "comm");
    *out = nullptr;
    require_membership(nranks, rank);
    const KeepCurrentGpu keep;
    return init_rank(function, out, {id_of(id), nranks, rank, current_gpu()}, read_config(config));
  });
}

// Makes a communicator from `parent` with `make`. As in NCCL the parent decides whether this call blocks; the config
// decides it for the calls of the new communicator.
ncclResult_t derive(const char* function, Pin parent, ncclComm_t* out, CommConfig config,
                    const std::function<Communicator(Communicator&)>& make) {
  Comm* const from = &*parent;
  Pin made = Pin::open(new Comm(from->shared_device(), from->rank(), from->nranks(), std::move(config)));
  *out = made.handle();
  Comm* const comm = &*made;
  return submit(Job{.function = function,
                    .target = std::move(made),
                    .parent = std::move(parent),
                    .out = out,
                    .blocking = from->is_blocking(),
                    .body = [=] {
                      Communicator communicator = make(from->communicator());
                      comm->set_ranks(communicator);
                      comm->set(std::move(communicator));
                      print_made(function, *comm);
                    }});
}

std::vector<int> excluded_ranks(const int* list, int count, const Comm& comm) {
  if (count < 0 || count >= comm.nranks())
    invalid_argument("excludeRanksCount is {}: it must be 0 to {}", count, comm.nranks() - 1);
  if (count > 0) require_pointer(list, "excludeRanksList");
  std::vector<int> result;
  for (int i = 0; i < count; ++i) {
    if (list[i] < 0 || list[i] >= comm.nranks())
      invalid_argument("excludeRanksList[{}] is {}: it must be 0 to {}", i, list[i], comm.nranks() - 1);
    if (list[i] == comm.rank()) invalid_argument("excludeRanksList[{}] is {}, the calling rank", i, list[i]);
    result.push_back(list[i]);
  }
  return result;
}

// Splits the communicator. A revoked communicator has failed and cannot be split, so shrink() first makes a new
// communicator of the same ranks. It is collective: all ranks call it here, because all ranks call ncclCommSplit.
std::optional<Communicator> split(Comm& parent, int color, int key) {
  Communicator& from = parent.communicator();
  if (!parent.is_revoked()) return from.split(color, key, kNoPlace);
  Communicator whole = from.shrink({}, kNoPlace);
  if (whole.nranks() != from.nranks())
    throw ApiError(ncclRemoteError, fmt::format("{} of the {} ranks are lost: call ncclCommShrink",
                                                from.nranks() - whole.nranks(), from.nranks()));
  std::optional<Communicator> made = whole.split(color, key, kNoPlace);
  whole.finalize(kNoPlace);  // no rank leaves while others still split
  return made;
}

template <class Value>
ncclResult_t get_int(const char* function, ncclComm_t comm, int* result, const char* name, const Value& value) {
  return run_api(function, comm, [&] {
    const Pin pin = Pin::of(comm);
    require_pointer(result, name);
    pin->require_ready();
    *result = value(*pin);
    return ncclSuccess;
  });
}

}  // namespace
}  // namespace slip::nccl

using namespace slip::nccl;

SLIP_NCCL_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId* uniqueId) {
  return run_api("ncclGetUniqueId", nullptr, [&] {
    require_pointer(uniqueId, "uniqueId");
    const slip::UniqueId id = slip::UniqueId::create({.host = {}, .lifetime = init_timeout()});
    std::memcpy(uniqueId->internal, id.bytes().data(), NCCL_UNIQUE_ID_BYTES);
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return init_rank("ncclCommInitRank", comm, nranks, commId, rank, nullptr);
}

SLIP_NCCL_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
              ncclConfig_t* config) {
  return init_rank("ncclCommInitRankConfig", comm, nranks, commId, rank, config);
}

// Several ids make NCCL's init faster. Slipstream has one root for all ranks, so it uses only the first id.
SLIP_NCCL_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
              ncclUniqueId* commIds, ncclConfig_t* config) {
  const ncclResult_t checked = run_api("ncclCommInitRankScalable", nullptr, [&] {
    require_pointer(newcomm, "newcomm");
    *newcomm = nullptr;
    require_pointer(commIds, "commIds");
    if (nId < 1 || nId > nranks) invalid_argument("nId is {}: it must be 1 to nranks, {}", nId, nranks);
    return ncclSuccess;
  });
  if (checked != ncclSuccess) return checked;
  return init_rank("ncclCommInitRankScalable", newcomm, nranks, commIds[0], myrank, config);
}

SLIP_NCCL_API(ncclResult_t, ncclCommInitAll, ncclComm_t* comm, int ndev, const int* devlist) {
  const char* const function = "ncclCommInitAll";
  static_cast<void>(pncclGroupStart());
  const ncclResult_t result = run_api(function, nullptr, [&] {
    require_pointer(comm, "comm");
    if (ndev < 1) invalid_argument("ndev is {}: it must be positive", ndev);
    std::fill_n(comm, ndev, nullptr);
    for (int i = 0; i < ndev; ++i) {
      const int gpu = devlist ? devlist[i] : i;
      if (gpu < 0 || (uses_gpus() && gpu >= gpu_count()))
        invalid_argument("rank {} cannot be on GPU {}: this process sees {} GPUs", i, gpu, gpu_count());
    }
    const KeepCurrentGpu keep;
    const slip::UniqueId id = slip::UniqueId::create({.host = "127.0.0.1", .lifetime = init_timeout()});
    for (int i = 0; i < ndev; ++i)
      static_cast<void>(init_rank(function, comm + i, {id, ndev, i, devlist ? devlist[i] : i}, read_config(nullptr)));
    return ncclSuccess;
  });
  const ncclResult_t ended = pncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

SLIP_NCCL_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
              ncclConfig_t* config) {
  return run_api("ncclCommSplit", comm, [&]() -> ncclResult_t {
    Pin parent = Pin::of(comm);
    require_pointer(newcomm, "newcomm");
    *newcomm = nullptr;
    parent->require_ready();
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
      invalid_argument("color is {}: it must be 0 or more, or NCCL_SPLIT_NOCOLOR ({})", color, NCCL_SPLIT_NOCOLOR);
    const KeepCurrentGpu keep;
    CommConfig own = read_config(config, parent->config());
    Comm* const from = &*parent;
    if (color != NCCL_SPLIT_NOCOLOR)
      return derive("ncclCommSplit", std::move(parent), newcomm, std::move(own),
                    [from, color, key](slip::Communicator&) { return *slip::nccl::split(*from, color, key); });
    return submit(
        Job{.function = "ncclCommSplit", .parent = std::move(parent), .blocking = from->is_blocking(), .body = [=] {
              static_cast<void>(slip::nccl::split(*from, slip::kNoColor, 0));
            }});
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
              ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  return run_api("ncclCommShrink", comm, [&] {
    Pin parent = Pin::of(comm);
    require_pointer(newcomm, "newcomm");
    *newcomm = nullptr;
    parent->require_ready();
    if (shrinkFlags != NCCL_SHRINK_DEFAULT && shrinkFlags != NCCL_SHRINK_ABORT)
      invalid_argument("shrinkFlags is {}: it must be NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT", shrinkFlags);
    const std::vector<int> excluded = excluded_ranks(excludeRanksList, excludeRanksCount, *parent);
    const KeepCurrentGpu keep;
    CommConfig own = read_config(config, parent->config());
    if (shrinkFlags == NCCL_SHRINK_ABORT && !parent->communicator().error())
      parent->communicator().fail(slip::ErrorCode::kAborted,
                                  fmt::format("rank {} called ncclCommShrink with NCCL_SHRINK_ABORT", parent->rank()));
    return derive("ncclCommShrink", std::move(parent), newcomm, std::move(own),
                  [=](slip::Communicator& from) { return from.shrink(excluded, kNoPlace); });
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return run_api("ncclCommFinalize", comm, [&] {
    Pin pin = Pin::of(comm);
    pin->require_ready();
    if (pin->is_revoked()) invalid_argument("comm was revoked: split, shrink or destroy it");
    const KeepCurrentGpu keep;
    Comm* const own = &*pin;
    return submit(
        Job{.function = "ncclCommFinalize", .target = std::move(pin), .blocking = own->is_blocking(), .body = [=] {
              own->finalize();
            }});
  });
}

// The handle becomes invalid at once. The last call that uses the communicator frees it.
SLIP_NCCL_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return run_api("ncclCommDestroy", comm, [&] {
    const KeepCurrentGpu keep;
    const Pin pin = Pin::of(comm);
    if (pin->is_making())
      invalid_usage(
          "comm is not ready: wait until ncclCommGetAsyncError returns no ncclInProgress, or call ncclCommAbort");
    if (!pin.close()) invalid_argument("comm {} was destroyed or aborted by another thread", fmt::ptr(comm));
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommAbort, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return run_api("ncclCommAbort", comm, [&] {
    const KeepCurrentGpu keep;
    const Pin pin = Pin::of(comm);
    if (!pin.close()) invalid_argument("comm {} was destroyed or aborted by another thread", fmt::ptr(comm));
    pin->abort();
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags) {
  return run_api("ncclCommRevoke", comm, [&] {
    const Pin pin = Pin::of(comm);
    if (revokeFlags != NCCL_REVOKE_DEFAULT) invalid_argument("revokeFlags is {}: it must be 0", revokeFlags);
    pin->require_ready();
    pin->revoke();
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError) {
  return run_api("ncclCommGetAsyncError", comm, [&] {
    const Pin pin = Pin::of(comm);
    require_pointer(asyncError, "asyncError");
    const Outcome state = pin->state();
    if (!state.text.empty()) pin->keep_error(state.text);
    *asyncError = state.result;
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int* count) {
  return get_int("ncclCommCount", comm, count, "count", [](const Comm& own) { return own.nranks(); });
}

SLIP_NCCL_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int* device) {
  return get_int("ncclCommCuDevice", comm, device, "device", [](const Comm& own) { return own.device().gpu(); });
}

SLIP_NCCL_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int* rank) {
  return get_int("ncclCommUserRank", comm, rank, "rank", [](const Comm& own) { return own.rank(); });
}
