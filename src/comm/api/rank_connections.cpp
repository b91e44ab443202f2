#include "comm/api/rank_connections.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"
#include "comm/delegate/nccl_library.hpp"
#include "comm/placement/rank_placement.hpp"

#if SLIP_HAS_CUDA
#include "comm/cuda/cuda_hosts.hpp"
#include "comm/cuda/cuda_ranks.hpp"
#include "comm/cuda/nccl_ranks.hpp"
#endif

namespace slip::comm {
namespace {

// The number of cores for each rank. If it is below 1, a waiting thread yields its core at once.
struct CoreShare {
  double each = 1;                  // on this rank's machine
  bool any_oversubscribed = false;  // a machine has more ranks than cores
};
CoreShare find_core_share(const transport::Bootstrap& bootstrap, const std::vector<RankLocation>& ranks) {
  struct Machine {
    const transport::Placement* of = nullptr;
    base::CoreSet cores;
    std::size_t ranks = 0;
    double cores_each() const { return static_cast<double>(cores.count()) / static_cast<double>(ranks); }
  };
  std::vector<Machine> machines;
  const std::vector<transport::Placement>& placements = bootstrap.placements();
  const auto machine_of = [&](const transport::Placement& placement) {
    return std::ranges::find_if(machines, [&](const Machine& one) { return transport::same_host(*one.of, placement); });
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

// The useful number of channels, within the limits that were requested.
void set_channels(const RequestedOptions& requested, const std::map<int, std::vector<int>>& members_by_host,
                  bool oversubscribed, TuningInputs& tuning) {
  auto each = static_cast<std::size_t>(tuning.nranks);
  for (const auto& [host, members] : members_by_host) each = std::min(each, members.size());
  const auto hosts = static_cast<int>(members_by_host.size());
  const int max = requested.max_channels == 0 ? kMaxChannels : requested.max_channels;
  tuning.min_channels = std::max(requested.min_channels, 1);
  tuning.max_channels =
      std::clamp(useful_channels(hosts, static_cast<int>(each), oversubscribed), tuning.min_channels, max);
}

// All ranks call it. Returns null if the ranks are not on GPUs. `hosts`: the host of each rank. Throws if some ranks
// are on GPUs and some are not, or if they cannot reach each other's memory.
std::unique_ptr<GpuCalls> meet_gpu_calls(transport::Bootstrap& bootstrap, const Device& device,
                                         [[maybe_unused]] std::span<const int> hosts,
                                         [[maybe_unused]] bool deterministic, Here here) {
  constexpr char kOnGpu = 1, kNccl = 2;  // flags that each rank sends: it is on a GPU; SLIP_NCCL asks for NCCL
  const bool on_gpu = device.info().name.starts_with("cuda");
  const bool asks_for_nccl = on_gpu && nccl_request_of(base::env().nccl) != NcclRequest::kNone;
  std::vector<char> all = bootstrap.all_gather(static_cast<char>((on_gpu ? kOnGpu : 0) | (asks_for_nccl ? kNccl : 0)));
  [[maybe_unused]] const bool any_nccl = std::ranges::any_of(all, [](char flags) { return (flags & kNccl) != 0; });
  for (char& flags : all) flags &= kOnGpu;
  const auto different = std::ranges::adjacent_find(all, std::not_equal_to<>());
  if (different != all.end()) {
    const auto rank = different - all.begin();
    base::fail(ErrorCode::kUnsupported, here,
               "rank {} is {} and rank {} {}: either all ranks of a communicator are on cuda devices, or none", rank,
               *different != 0 ? "on a GPU" : "not on a GPU", rank + 1, *different != 0 ? "is not" : "is");
  }
  if (!on_gpu) return nullptr;
#if SLIP_HAS_CUDA
  if (any_nccl) {
    if (std::unique_ptr<GpuCalls> delegated = NcclRanks::meet(bootstrap, device, deterministic, here)) return delegated;
  }
  const bool one_host = std::ranges::adjacent_find(hosts, std::not_equal_to<>()) == hosts.end();
  return one_host ? CudaRanks::meet(bootstrap, device, here) : CudaHosts::meet(bootstrap, device);
#else
  return nullptr;  // not reached: without CUDA no such device can be opened
#endif
}

}  // namespace

RankConnections::RankConnections(const transport::Membership& group, const Device& on, const CommunicatorOptions& opts,
                                 Here here, std::shared_ptr<transport::AbortFlag> abort, int inherited_topology_device)
    : device(on),
      options(opts),
      requested(RequestedOptions::of(options, here)),
      bootstrap(group.id, group.nranks, group.rank, bootstrap_options(options, std::move(abort))) {
  bootstrap.set_call(bootstrap.begin(transport::SetupKind::kInit));
  try {
    set_up(inherited_topology_device, here);
  } catch (const Error& error) {
    const bool is_consequence = error.code() == ErrorCode::kRankLost || error.code() == ErrorCode::kAborted;
    const Error cause = is_consequence ? bootstrap.with_cause(error) : error;
    // Every rank finds a mismatch itself. Other errors are reported: otherwise the other ranks would only see that this
    // rank left.
    if (cause.code() != ErrorCode::kMismatch) bootstrap.failures().fail(cause.code(), base::bare_text(cause));
    throw cause;
  }
  bootstrap.set_call({});
}

void RankConnections::set_up(int inherited_topology_device, Here here) {
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const std::vector<RequestedOptions> all = bootstrap.all_gather(requested);
  require_same_requests(all, rank, here);
  const RankPlacement places =
      find_rank_placement(bootstrap, hosts_of(bootstrap.placements(), all),
                          RankLocation::own(options, inherited_topology_device), topology_file(options), here);
  topology_device = places.device_of(rank);
  const std::map<int, std::vector<int>> members_by_host = members_of(places.hosts);
  const std::vector<int>& members = members_by_host.at(places.hosts[static_cast<std::size_t>(rank)]);
  tuning.nranks = nranks;
  // Over the network alone, relays gain nothing: blocks would cross the network once more to reach the relay.
  tuning.hosts = requested.transport == Transport::kNet ? nranks : static_cast<int>(members_by_host.size());
  const CoreShare cores = find_core_share(bootstrap, places.ranks);
  cores_each = cores.each;
  set_channels(requested, members_by_host, cores.any_oversubscribed, tuning);
  const bool may_read = requested.single_copy != SingleCopy::kNever;
  if (nranks == 1 || (requested.transport == Transport::kAuto && members.size() > 1))
    host.emplace(bootstrap, members, tuning.max_channels, may_read);
  if (host && members.size() == static_cast<std::size_t>(nranks)) memory.emplace(bootstrap, options.direct);
  if (memory && nranks > 1) memory->probe_reads(may_read && device.info().name.starts_with("cpu"));
  graphs = agree_on_comm_graphs(bootstrap, places, tuning.max_channels, here);
  if (places.cluster && tuning.hosts > 1 && tuning.hosts < nranks)
    tuning.loads = AllToAllLoads::of(*places.cluster, graphs.front().relays);
  links.emplace(bootstrap, host ? &*host : nullptr, net_options_of(options), timeout_ns(), tuning.max_channels,
                topology_nics(places, graphs, rank));
  tuning.rails = links->rails();
  tuning.rates = measure_links(bootstrap, *links, bootstrap.call_of({}).deadline_ns);
  ledger_slot = std::make_shared<transport::LedgerSlot>(
      transport::LedgerSlot::Identity{bootstrap.id(), rank, nranks, device.info().label, options.name});
  monitor = std::make_shared<CallMonitor>(ledger_slot);
  bootstrap.server().set_monitor(monitor);
  sim = SimRanks::meet(bootstrap, device, {tuning, graphs, requested.algorithm, requested.deterministic}, here);
  gpu = meet_gpu_calls(bootstrap, device, places.hosts, requested.deterministic, here);
}

bool RankConnections::is_shared(const Call& call) const {
  return memory &&
         (bootstrap.nranks() == 1 || requested.algorithm == Algorithm::kAuto ||
          requested.algorithm == Algorithm::kDirect || find_schedule(requested.algorithm, call.kind) == nullptr);
}

bool RankConnections::is_repeatable(const Call& call) const {
  const int nranks = bootstrap.nranks();
  return memory && !sim && !gpu && StagedProgramBuilder::is_small(call, nranks) && is_shared(call) &&
         !(memory->can_read() && DirectProgramBuilder::can_read(call, nranks));
}

MessageProgramBuilder RankConnections::plan_of(const Call& call, bool in_place,
                                               std::set<std::string>& explained) const {
  const bool explain = base::debugs("tune");
  const ScheduleChoice choice = choice_of(call, explain);
  if (explain && bootstrap.rank() == 0 && explained.insert(choice.text).second) base::log_line(choice.text);
  return {*choice.schedule, Task{call, bootstrap.rank(), bootstrap.nranks(), in_place, choice.chunk_bytes},
          std::span(graphs).first(static_cast<std::size_t>(choice.channels))};
}

}  // namespace slip::comm
