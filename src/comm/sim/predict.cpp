#include "comm/sim/predict.hpp"

#include <algorithm>
#include <map>

#include "backend/sim/description.hpp"
#include "base/fail.hpp"
#include "comm/api/communicator_state.hpp"
#include "comm/placement/comm_graph.hpp"
#include "comm/sim/cost_model.hpp"
#include "runtime/observers.hpp"
#include "slip/stream.hpp"
#include "topo/fabric.hpp"
#include "topo/trees.hpp"

namespace slip::comm {
namespace {

constexpr double kMaxSteps = 1e6;  // of predict(): they take some seconds and a gigabyte of memory
// Limits of a CallPredictor. The steps take a second or two.
constexpr int kMaxRanks = 64;
constexpr std::size_t kMaxCommSteps = 400'000;
constexpr std::size_t kQueueDepth = std::size_t{1} << 22;
// Queues of a sim device. Streams that shared a queue would wait for each other. An eager wire has eight streams, a
// pipelined wire four, and any other wire one. So a rank has at most kMaxEager eager wires, kMaxPipelined pipelined
// wires, or kMaxWires others.
constexpr int kQueues = 128;
constexpr std::size_t kMaxEager = 15, kMaxPipelined = 31, kMaxWires = 126;

// The rate in bytes per second, rounded down to whole MB/s; at least 1 MB/s, the minimum of a sim link.
std::uint64_t link_rate(double gbps) { return static_cast<std::uint64_t>(std::max(gbps * 1e3, 1.0)) * sim::kMinRate; }
Picos picos(double us) { return static_cast<Picos>(std::max(us, 0.0) * 1e6); }

WireKind wire_kind(std::size_t wires_of_rank, WireKind wanted) {
  if (wires_of_rank > kMaxPipelined) return WireKind::kRendezvous;
  return wires_of_rank > kMaxEager ? WireKind::kPipelined : wanted;
}

// Opens the devices of a sim machine of ranks. `peers`: its links, and the routes over them.
std::vector<Device> open_machine(const sim::PeerDescription& peers, int devices, double memory_gbps) {
  const sim::Description description{.name = "rank",
                                     .memory = 900'000'000'000'000,
                                     .queues = kQueues,
                                     .compute = {.flops = 1'000'000'000'000'000, .bandwidth = link_rate(memory_gbps)},
                                     .copies = {.in = 100'000'000'000, .out = 100'000'000'000},
                                     .peers = peers};
  return sim::open_devices(description, devices, {.queue_depth = kQueueDepth, .run_functions = false});
}

// Returns the microseconds of virtual time that the simulation takes.
double run(ProgramSimulation& simulation, const Device& device) {
  Plan plan = simulation.plan();
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  const Picos begun = device.now();
  stream.launch(plan);
  stream.sync();
  return static_cast<double>(device.now() - begun) / 1e6;
}

// --- Predictions for machines of a topology ---

// A sim machine with the links of the cluster and one device for each track of each rank.
class ClusterLinks {
 public:
  ClusterLinks(const Cluster& cluster, const PredictedCosts& costs, int tracks, bool rails)
      : fabric_(cluster, {}, !rails), costs_(costs), tracks_(tracks), rails_(rails) {}

  // Adds the path from one rank to another, over the nets of `channel`; null: over each rank's nearest net. `ring`: the
  // channel's ring, which may leave a machine through another net than the trees.
  void add(int from, int to, int track, const CommChannel* channel, bool ring) {
    const auto [note, is_new] = notes_.try_emplace({from, to, track});
    if (!is_new) return;
    max_wires_ = std::max(max_wires_, ++wires_[{from, track}]);
    if (max_wires_ > kMaxWires)
      base::fail(ErrorCode::kInvalidValue, {},
                 "prediction: rank {} exchanges messages with more than {} other ranks, which is not simulated; give "
                 "fewer ranks",
                 from, kMaxWires);
    const RankPlace a = place_of(from), b = place_of(to);
    std::vector<std::string> names;
    const auto cross = [&](int node, int source, int target) {
      for (const int link : fabric_.paths(node).between(source, target).links) {
        const std::string name = fmt::format("{}.{}", node, link);
        if (std::ranges::find(names, name) != names.end()) continue;
        names.push_back(name);
        peers_.links[name] = link_rate(fabric_.system(node).links[static_cast<std::size_t>(link)].gbps);
      }
    };
    const bool within = a.node == b.node;
    if (within) {
      cross(a.node, device(a), device(b));
    } else {
      const bool by_rail = rails_ && !channel;
      const std::size_t in = b.node == kInNetwork ? 0 : net_of(b, channel ? &channel->nets : nullptr);
      const std::size_t out = a.node == kInNetwork || by_rail ? in
                              : channel                       ? net_of(a, ring ? &channel->nets_out : &channel->nets)
                                                              : net_of(a, nullptr);
      note->second = fmt::format(", NIC {} to {}", out, in);
      if (a.node != kInNetwork) cross(a.node, device(a), net(a.node, out));
      if (b.node != kInNetwork) cross(b.node, net(b.node, in), device(b));
    }
    if (names.empty()) {  // two ranks on one device, or a net that no link reaches
      names.push_back(fmt::format("memory of {}.{}", a.node, a.device));
      peers_.links[names.back()] = link_rate(memory_gbps());
    }
    peers_.routes.push_back({from * tracks_ + track, to * tracks_ + track,
                             picos(within ? costs_.latency_us : costs_.net_latency_us), std::move(names)});
  }

  // The nets that a path between machines uses, for the timeline.
  std::string note(int from, int to, int track) const {
    const auto found = notes_.find({from, to, track});
    return found == notes_.end() ? "" : found->second;
  }
  WireKind wires() const { return wire_kind(max_wires_, WireKind::kEager); }
  std::vector<Device> open(int ranks) const { return open_machine(peers_, ranks * tracks_, memory_gbps() / tracks_); }

 private:
  static constexpr int kInNetwork = -1;
  RankPlace place_of(int rank) const {
    return rank < fabric_.ranks() ? fabric_.place_of(rank) : RankPlace{kInNetwork, 0};
  }
  int device(const RankPlace& place) const {
    return fabric_.system(place.node).devices[static_cast<std::size_t>(place.device)];
  }
  int net(int node, std::size_t number) const {
    const std::vector<int>& nets = fabric_.system(node).nets;
    if (nets.empty())
      base::fail(ErrorCode::kInvalidValue, {}, "prediction: machine {} ({}) has no net to reach others", node,
                 fabric_.system(node).name);
    return nets[number % nets.size()];
  }
  // The net of its machine that a rank uses. `by_node`: a channel's. Otherwise the nearest; if several are equally
  // near, neighbouring ranks use different ones.
  std::size_t net_of(const RankPlace& place, const std::vector<int>* by_node) const {
    const std::vector<int>& nets = fabric_.system(place.node).nets;
    if (nets.empty()) return 0;
    if (by_node && !by_node->empty()) return static_cast<std::size_t>((*by_node)[static_cast<std::size_t>(place.node)]);
    return topo::nearest(nets.size(), place.device, [&](std::size_t number) {
      const TopoPaths& all = fabric_.paths(place.node);
      return std::pair(all.type(device(place), nets[number]), -all.gbps(device(place), nets[number]));
    });
  }
  double memory_gbps() const {
    if (costs_.memory_gbps > 0) return costs_.memory_gbps;
    const TopoSystem& first = fabric_.system(0);
    const bool gpus = first.nodes[static_cast<std::size_t>(first.devices.front())].kind == TopoKind::kGpu;
    return gpus ? gpu_costs(first).memory_gbps : 20;
  }

  const topo::Fabric fabric_;
  const PredictedCosts& costs_;
  const int tracks_;
  const bool rails_;
  std::map<std::tuple<int, int, int>, std::string> notes_;  // of the added paths, by sender, receiver and track
  std::map<std::pair<int, int>, std::size_t> wires_;        // by rank and track: the number of wires on which it sends
  std::size_t max_wires_ = 0;
  sim::PeerDescription peers_{.form = sim::PeerDescription::Form::kLinks};
};

void add_routes(ClusterLinks& links, const RankPrograms& programs, int track, const CommChannel* channel, bool ring) {
  for (std::size_t rank = 0; rank < programs.by_rank.size(); ++rank) {
    for (const Primitive& step : programs.by_rank[rank].steps) {
      if (step.kind == Primitive::Kind::kSend)
        links.add(static_cast<int>(rank), static_cast<int>(step.peer), track, channel, ring);
    }
  }
}

// A GPU sends a chunk of a tree while it receives and reduces others. The program of the tree algorithm awaits a
// message two steps after it was sent, so a link is idle for a latency and a reduction of each step. With `kSlack`
// times the levels, messages of that many times the steps are under way. Their bytes wait in the slots of the eager
// wires.
void stretch(LeveledTree& tree) {
  constexpr int kSlack = 2;
  for (int& level : tree.level) level *= kSlack;
  tree.depth *= kSlack;
}

// The size of a chunk. A ring runs in loops of one chunk for each rank, and between two loops each link is idle for the
// time of a hop. GPUs go on without that gap. So a large call has few loops, of large chunks. A tree is idle until its
// first chunks have gone up and down, so a call has many small chunks: the more, the deeper the tree is, as long as
// nine tenths of kMaxSteps are enough.
std::uint64_t simulated_chunk(const PredictionRequest& request, int nranks, std::size_t tracks, int depth) {
  if (request.chunk_bytes > 0) return request.chunk_bytes;
  constexpr std::uint64_t kLoops = 4, kTreeChunks = 128, kMinTreeChunk = 16 << 10, kLine = 64;
  constexpr double kStepsOfChunk = 8;  // of a rank, in the mean of a tree
  const std::uint64_t usual = choose(request.call, {.nranks = nranks}, request.algorithm, false, false).chunk_bytes;
  const auto whole_lines = [](std::uint64_t bytes) { return (bytes + kLine) / kLine * kLine; };
  const std::uint64_t share = request.call.block_bytes() / tracks;
  if (request.algorithm == Algorithm::kTree) {
    const auto possible =
        static_cast<std::uint64_t>(0.9 * kMaxSteps / kStepsOfChunk / (nranks * static_cast<double>(tracks)));
    const std::uint64_t wanted = kTreeChunks * static_cast<std::uint64_t>(std::max(depth, 1));
    const std::uint64_t chunks = std::max(std::min(wanted, possible), kTreeChunks);
    return std::clamp(whole_lines(share / chunks), std::min(kMinTreeChunk, usual), usual);
  }
  if (request.algorithm != Algorithm::kRing || request.call.kind != Collective::kAllReduce) return usual;
  return std::max(usual, whole_lines(share / (static_cast<std::uint64_t>(nranks) * kLoops)));
}

std::uint64_t largest_message(const RankPrograms& programs) {
  std::uint64_t largest = 0;
  for (const Program& program : programs.by_rank) {
    for (const Primitive& step : program.steps) {
      if (step.kind == Primitive::Kind::kSend) largest = std::max(largest, step.bytes);
    }
  }
  return largest;
}

// Throws if there are too many steps. Estimates them from the first piece of rank 0, because the programs of all ranks
// might not fit into memory.
void require_few(const CallSpec& spec, const CommGraph& graph, std::size_t tracks, Here here) {
  const auto nranks = static_cast<int>(graph.order.size());
  const MessageProgramBuilder builder(*spec.schedule, {spec.call, 0, nranks, spec.in_place, spec.chunk_bytes},
                                      {&graph, 1});
  Program first;
  builder.write(0, 0, first);
  const double steps = static_cast<double>(std::max<std::size_t>(first.steps.size(), 1)) *
                       static_cast<double>(builder.pieces(0)) * nranks * static_cast<double>(tracks);
  if (steps > kMaxSteps)
    base::fail(ErrorCode::kInvalidValue, here,
               "prediction: about {:.0f} steps, at most {} are simulated; give fewer ranks, channels or "
               "bytes",
               steps, kMaxSteps);
}

}  // namespace

CallPrediction predict(const Cluster& cluster, const ChannelPlan& plan, const PredictionRequest& request, Here here) {
  const auto nranks = static_cast<int>(cluster.ranks.size());
  const Schedule* const schedule = find_schedule(request.algorithm, request.call.kind);
  const bool by_tree = request.algorithm == Algorithm::kTree && request.call.kind == Collective::kAllReduce;
  const bool has_switch = by_tree && !plan.channels.empty() && !plan.channels.front().switch_tree.parent.empty();
  if (!schedule || nranks < 2 || request.call.block_bytes() == 0 || (request.through_switch && !has_switch))
    base::fail(ErrorCode::kInvalidValue, here,
               "prediction: {} of {} bytes by {}{} among {} ranks cannot be simulated: the algorithm must have this "
               "collective, and the call at least 1 byte and 2 ranks",
               collective_name(request.call.kind), request.call.block_bytes(), algorithm_name(request.algorithm),
               request.through_switch ? " through a switch" : "", nranks);
  const bool by_channels = request.algorithm == Algorithm::kRing || request.algorithm == Algorithm::kTree;
  const std::size_t channels = by_channels ? plan.channels.size() : 1;
  const std::size_t tracks = std::min<std::size_t>(channels, request.call.elements);
  const bool trees = request.algorithm == Algorithm::kTree && !plan.channels.front().trees.empty();
  const int depth = trees ? topo::depth_of(plan.channels.front().trees.front()) : 1;
  const std::uint64_t chunk = simulated_chunk(request, nranks, tracks, depth);
  ClusterLinks links(cluster, request.costs, static_cast<int>(tracks), request.rails);
  std::vector<RankPrograms> sequence;
  CallPrediction result{.us = 0, .channels = static_cast<int>(tracks), .steps = 0};
  for (std::size_t track = 0; track < tracks; ++track) {
    const CommChannel& channel = plan.channels[track];
    CallSpec spec{schedule, request.call, true, chunk};
    const std::uint64_t elements = request.call.elements;  // each channel carries a share
    spec.call.elements = elements * (track + 1) / tracks - elements * track / tracks;
    CommGraph graph = request.through_switch ? switch_comm_graph(channel) : comm_graph(channel);
    if (request.algorithm == Algorithm::kRelay) graph.relays = relays_of(cluster);
    for (LeveledTree& tree : graph.trees) stretch(tree);
    require_few(spec, graph, tracks, here);
    sequence.push_back(rank_programs(spec, graph));
    if (request.through_switch)  // a switch reduces messages while it forwards them: its program has no reduce steps
      std::erase_if(sequence.back().by_rank.back().steps,
                    [](const Primitive& step) { return step.kind == Primitive::Kind::kReduce; });
    for (const Program& program : sequence.back().by_rank) result.steps += program.steps.size();
    add_routes(links, sequence.back(), static_cast<int>(track), by_channels ? &channel : nullptr,
               request.algorithm == Algorithm::kRing);
  }
  const std::vector<Device> devices = links.open(nranks + (request.through_switch ? 1 : 0));
  ProgramSimulation simulation(devices, links.wires(), static_cast<int>(tracks));
  constexpr std::uint64_t kSmallMessage = 64 << 10;  // its latency matters more than its bytes
  if (largest_message(sequence.front()) <= kSmallMessage && links.wires() == WireKind::kEager)
    simulation.set_wire_streams(ProgramPlayer::kSlots);
  simulation.set_wire_note([&](int from, int to, int track) { return links.note(from, to, track); });
  for (std::size_t track = 0; track < tracks; ++track) simulation.add(sequence[track], static_cast<int>(track));
  result.us = run(simulation, devices.front());
  return result;
}

TuningInputs predicted_tuning(const Cluster& cluster, const PredictedCosts& costs, NetReach reach) {
  const topo::Fabric fabric(cluster, {});
  const std::vector<int>& here = fabric.ranks_of(fabric.node_of(0));
  const TopoPaths& paths = fabric.paths(fabric.node_of(0));
  TuningInputs tuning;
  tuning.nranks = fabric.ranks();
  tuning.hosts = static_cast<int>(fabric.used_nodes().size());
  tuning.rates = {.latency_us = costs.latency_us, .gbps = 0, .message_us = 0};
  tuning.rates.host_latency_us = costs.latency_us;
  if (here.size() > 1) {  // rank 0 is the first of them
    const double gbps = paths.gbps(fabric.device_of(0), fabric.device_of(here[1]));
    if (gbps > 0) tuning.rates.host_gbps = gbps;
  }
  tuning.rates.gbps = tuning.rates.host_gbps;
  if (tuning.hosts < 2) return tuning;
  const int net = topo::nearest_net(fabric.system(fabric.node_of(0)), paths, fabric.device_of(0), 0);
  tuning.rates.latency_us = costs.net_latency_us;
  tuning.rates.gbps = paths.gbps(fabric.device_of(0), fabric.net(fabric.node_of(0), net));
  tuning.loads = AllToAllLoads::of(cluster, relays_of(cluster), reach);
  return tuning;
}

// --- Predictions for the links of a communicator ---

// Each rank sends at the rate of a link and receives at the same rate. Between ranks of one host the cores move the
// bytes, so all messages there share the cores. If a rank has less than one core, it copies and reduces more slowly.
std::vector<Device> CallPredictor::open_ranks() const {
  const int nranks = comm_.bootstrap.nranks();
  const std::vector<transport::Placement>& placements = comm_.bootstrap.placements();
  const LinkRates& rates = comm_.tuning.rates;
  sim::PeerDescription peers{.form = sim::PeerDescription::Form::kLinks};
  std::vector<int> hosts;
  for (int rank = 0; rank < nranks; ++rank) {
    const auto same = [&](const transport::Placement& one) {
      return transport::same_host(one, placements[static_cast<std::size_t>(rank)]);
    };
    hosts.push_back(static_cast<int>(std::ranges::find_if(placements, same) - placements.begin()));
    peers.links[fmt::format("out {}", rank)] = link_rate(rates.gbps);
    peers.links[fmt::format("in {}", rank)] = link_rate(rates.gbps);
    if (hosts.back() != rank) continue;
    const auto ranks_there = static_cast<double>(std::ranges::count_if(placements, same));
    peers.links[fmt::format("cores {}", rank)] = link_rate(rates.gbps * std::max(comm_.cores_each * ranks_there, 2.0));
  }
  for (int from = 0; from < nranks; ++from) {
    for (int to = 0; to < nranks; ++to) {
      if (from == to) continue;
      std::vector<std::string> names = {fmt::format("out {}", from), fmt::format("in {}", to)};
      const int host = hosts[static_cast<std::size_t>(from)];
      if (host == hosts[static_cast<std::size_t>(to)]) names.push_back(fmt::format("cores {}", host));
      peers.routes.push_back({from, to, picos(rates.latency_us), std::move(names)});
    }
  }
  return open_machine(peers, nranks, kMemoryGbps * std::min(comm_.cores_each, 1.0));
}

std::vector<RankPrograms> CallPredictor::programs_of(const Call& call, bool reachable, int calls) const {
  const int nranks = comm_.bootstrap.nranks();
  const auto count = static_cast<std::size_t>(calls);
  if (nranks < 2 || nranks > kMaxRanks) return {};
  if (comm_.is_shared(call)) {
    Reachable buffers;
    if (reachable || comm_.memory->one_process()) buffers.offers = [](std::size_t, int) { return true; };
    return host_rank_programs(std::vector<Call>(count, call), nranks, buffers);
  }
  const ScheduleChoice choice = comm_.choice_of(call, false);
  const CallSpec spec{choice.schedule, call, false, choice.chunk_bytes};
  const std::span<const CommGraph> graphs(comm_.graphs);
  return std::vector<RankPrograms>(count, rank_programs(spec, graphs.first(static_cast<std::size_t>(choice.channels))));
}

double CallPredictor::us(const Call& call, bool reachable, int calls, Here here) const {
  const int nranks = comm_.bootstrap.nranks();
  const std::vector<RankPrograms> sequence = programs_of(call, reachable, calls);
  std::size_t steps = 0;
  int channels = 1;
  for (const RankPrograms& programs : sequence) {
    for (const Program& program : programs.by_rank) steps += program.steps.size();
    channels = std::max(channels, programs.channels);
  }
  if (steps == 0 || steps > kMaxCommSteps)
    base::fail(ErrorCode::kInvalidValue, here,
               "prediction: {} steps of {} ranks; at most {} of 2 to {} ranks are simulated", steps, nranks,
               kMaxCommSteps, kMaxRanks);
  const runtime::PrivateScope predicting;  // keeps the simulation out of the program's trace
  const std::vector<Device> devices = open_ranks();
  for (std::size_t i = 0; i < devices.size(); ++i) {  // each rank reads the staging memory of the others
    for (std::size_t j = 0; j < devices.size(); ++j) {
      if (i != j) devices[i].enable_peer_access(devices[j]);
    }
  }
  std::vector<Device> tracks;  // the channels of a rank share its device
  for (const Device& device : devices) tracks.insert(tracks.end(), static_cast<std::size_t>(channels), device);
  ProgramSimulation simulation(tracks, wire_kind(static_cast<std::size_t>(nranks), WireKind::kPipelined), channels);
  simulation.set_flag_latency(static_cast<Picos>(comm_.tuning.rates.latency_us * 1e6));
  for (const RankPrograms& programs : sequence) simulation.add(programs);
  return run(simulation, devices.front()) / calls;
}

}  // namespace slip::comm
