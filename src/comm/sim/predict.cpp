#include "comm/sim/predict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "comm/placement/comm_graph.hpp"
#include "comm/plan/tuning.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

constexpr double kMaxSteps = 1e6;  // some seconds, and a gigabyte
constexpr std::size_t kQueueDepth = std::size_t{1} << 22;
// Of a sim device. Streams that share one would wait for each other, and a wire that is pipelined is four.
constexpr std::size_t kQueues = 128, kMaxPipelined = 31, kMaxWires = 126;

// A switch reduces what comes while it passes on.
void make_switch(Program& program) {
  std::erase_if(program.steps, [](const Primitive& step) { return step.kind == Primitive::Kind::kReduce; });
}

// The ways of messages over the links of the cluster, as the description of a sim world with a device for each track
// of each rank.
class WorldOfLinks {
 public:
  WorldOfLinks(const Cluster& cluster, const PredictedCosts& costs, int tracks, bool rails)
      : cluster_(cluster), costs_(costs), tracks_(tracks), rails_(rails) {
    for (const System& system : cluster.nodes) {
      const auto known = std::find_if(paths_.begin(), paths_.end(), [&](const auto& one) {
        return one.first->xml == system.xml && one.first->name == system.name;
      });
      of_node_.push_back(static_cast<std::size_t>(known - paths_.begin()));
      if (known == paths_.end()) paths_.emplace_back(&system, TopoPaths(system, !rails));
    }
  }

  // `channel`: whose nets are used; null: each rank's nearest.
  void add(int from, int to, int track, const Channel* channel) {
    if (!added_.insert({from, to, track}).second) return;
    max_wires_ = std::max(max_wires_, ++wires_[{from, track}]);
    if (max_wires_ > kMaxWires)
      throw Error(Code::kInvalidValue,
                  fmt::format("prediction: a rank with more than {} others at once is not simulated; give fewer ranks",
                              kMaxWires),
                  {});
    const RankPlace a = place_of(from), b = place_of(to);
    std::vector<std::string> ways;
    const auto cross = [&](int node, int source, int target) {
      for (const int link : paths(node).between(source, target).links) {
        const std::string name = fmt::format("{}.{}", node, link);
        if (std::find(ways.begin(), ways.end(), name) != ways.end()) continue;
        ways.push_back(name);
        rates_[name] = system(node).links[static_cast<std::size_t>(link)].gbps;
      }
    };
    const bool within = a.node == b.node;
    if (within) {
      cross(a.node, device(a), device(b));
    } else {
      const bool by_rail = rails_ && !channel;
      const std::size_t in = b.node == kInNetwork ? 0 : net_of(b, channel);
      if (a.node != kInNetwork) cross(a.node, device(a), net(a.node, by_rail ? in : net_of(a, channel)));
      if (b.node != kInNetwork) cross(b.node, net(b.node, in), device(b));
    }
    if (ways.empty()) {  // two ranks on one device, or a net without a way to it
      ways.push_back(fmt::format("memory of {}.{}", a.node, a.device));
      rates_[ways.back()] = memory_gbps();
    }
    std::string names;
    for (const std::string& way : ways) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", way);
    routes_ += fmt::format("{}{{\"from\": {}, \"to\": {}, \"latency\": \"{} ps\", \"links\": [{}]}}",
                           routes_.empty() ? "" : ",\n", from * tracks_ + track, to * tracks_ + track,
                           picos(within ? costs_.latency_us : costs_.net_latency_us), names);
  }

  WireKind wires() const { return max_wires_ > kMaxPipelined ? WireKind::kRendezvous : WireKind::kPipelined; }
  std::vector<Device> open(int ranks) const {
    std::string links;
    for (const auto& [name, gbps] : rates_)
      links += fmt::format("{}\"{}\": \"{} MB/s\"", links.empty() ? "" : ", ", name, megabytes(gbps));
    const std::string text = fmt::format(
        "{{\"name\": \"{}\", \"memory\": \"900 TB\", \"queues\": {},"
        " \"compute\": {{\"flops\": \"1000 TFLOP/s\", \"bandwidth\": \"{} MB/s\"}},"
        " \"copies\": {{\"in\": \"100 GB/s\", \"out\": \"100 GB/s\"}},"
        " \"peers\": {{\"form\": \"links\", \"links\": {{{}}}, \"paths\": [{}]}}}}",
        "rank", kQueues, megabytes(memory_gbps() / tracks_), links, routes_);
    return Device::open_all("sim:" + text, ranks * tracks_, {.queue_depth = kQueueDepth, .run_functions = false});
  }

 private:
  static constexpr int kInNetwork = -1;
  RankPlace place_of(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return index < cluster_.ranks.size() ? cluster_.ranks[index] : RankPlace{kInNetwork, 0};
  }
  const System& system(int node) const { return *paths_[of_node_[static_cast<std::size_t>(node)]].first; }
  const TopoPaths& paths(int node) const { return paths_[of_node_[static_cast<std::size_t>(node)]].second; }
  int device(const RankPlace& place) const {
    return system(place.node).devices[static_cast<std::size_t>(place.device)];
  }
  int net(int node, std::size_t number) const {
    const std::vector<int>& nets = system(node).nets;
    if (nets.empty())
      throw Error(Code::kInvalidValue,
                  fmt::format("prediction: machine {} ({}) has no net to reach others", node, system(node).name), {});
    return nets[number % nets.size()];
  }
  // Which of its machine's a rank uses. Of equally near nets neighbours take different ones.
  std::size_t net_of(const RankPlace& place, const Channel* channel) const {
    const std::vector<int>& nets = system(place.node).nets;
    if (nets.empty()) return 0;
    if (channel && !channel->nets.empty())
      return static_cast<std::size_t>(channel->nets[static_cast<std::size_t>(place.node)]);
    std::vector<std::size_t> nearest;
    for (std::size_t number = 0; number < nets.size(); ++number) {
      const auto better = [&](std::size_t one, std::size_t other) {
        const auto of = [&](std::size_t to) {
          return std::pair(paths(place.node).type(device(place), nets[to]),
                           -paths(place.node).gbps(device(place), nets[to]));
        };
        return of(one) < of(other);
      };
      if (!nearest.empty() && better(number, nearest.front())) nearest.clear();
      if (nearest.empty() || !better(nearest.front(), number)) nearest.push_back(number);
    }
    return nearest[static_cast<std::size_t>(place.device) % nearest.size()];
  }
  double memory_gbps() const {
    if (costs_.memory_gbps > 0) return costs_.memory_gbps;
    const System& first = cluster_.nodes.front();
    const bool gpus = first.nodes[static_cast<std::size_t>(first.devices.front())].kind == TopoKind::kGpu;
    return gpus ? 2000 : 20;
  }
  static std::uint64_t megabytes(double gbps) { return static_cast<std::uint64_t>(std::max(gbps * 1e3, 1.0)); }
  static std::uint64_t picos(double us) { return static_cast<std::uint64_t>(std::max(us, 0.0) * 1e6); }

  const Cluster& cluster_;
  const PredictedCosts& costs_;
  const int tracks_;
  const bool rails_;
  std::vector<std::pair<const System*, TopoPaths>> paths_;  // of machines that differ
  std::vector<std::size_t> of_node_;
  std::set<std::tuple<int, int, int>> added_;
  std::map<std::pair<int, int>, std::size_t> wires_;  // out of a rank's track
  std::size_t max_wires_ = 0;
  std::map<std::string, double> rates_;
  std::string routes_;
};

void add_routes(WorldOfLinks& world, const RankPrograms& programs, int track, const Channel* channel) {
  for (std::size_t rank = 0; rank < programs.by_rank.size(); ++rank) {
    for (const Primitive& step : programs.by_rank[rank].steps) {
      if (step.kind == Primitive::Kind::kSend)
        world.add(static_cast<int>(rank), static_cast<int>(step.peer), track, channel);
    }
  }
}

// Channel `index` of `count` carries these elements.
std::uint64_t share_of(std::uint64_t elements, std::size_t index, std::size_t count) {
  return elements * (index + 1) / count - elements * index / count;
}

// By the first piece of the first rank: before the programs are written, which alone could fill the memory.
void require_few(const CallSpec& spec, const CommGraph& graph, std::size_t tracks, Here here) {
  const auto nranks = static_cast<int>(graph.order.size());
  const MessageProgramBuilder plan(*spec.schedule, {spec.call, 0, nranks, spec.in_place, spec.chunk_bytes},
                                   {&graph, 1});
  Program first;
  plan.write(0, 0, first);
  const double steps = static_cast<double>(std::max<std::size_t>(first.steps.size(), 1)) *
                       static_cast<double>(plan.pieces(0)) * nranks * static_cast<double>(tracks);
  if (steps > kMaxSteps)
    throw Error(Code::kInvalidValue,
                fmt::format("prediction: about {:.0f} steps, at most {} are simulated; give fewer ranks, channels or "
                            "bytes",
                            steps, kMaxSteps),
                here);
}

// All at once, each a track. In microseconds.
double simulate(std::span<const RankPrograms> sequence, const std::vector<Device>& devices, WireKind wires) {
  ProgramSimulation simulation(devices, wires, static_cast<int>(sequence.size()));
  for (std::size_t track = 0; track < sequence.size(); ++track)
    simulation.add(sequence[track], static_cast<int>(track));
  Plan plan = simulation.plan();
  const Stream stream = devices.front().stream(StreamFlags::kNonBlocking);
  const Picos begun = devices.front().now();
  stream.launch(plan);
  stream.sync();
  return static_cast<double>(devices.front().now() - begun) / 1e6;
}

}  // namespace

CallPrediction predict(const Cluster& cluster, const ChannelPlan& plan, const PredictionAsked& asked, Here here) {
  const auto nranks = static_cast<int>(cluster.ranks.size());
  const Schedule* const schedule = find_schedule(asked.algorithm, asked.call.kind);
  const bool by_tree = asked.algorithm == Algorithm::kTree && asked.call.kind == Collective::kAllReduce;
  const bool has_switch = by_tree && !plan.channels.empty() && !plan.channels.front().switch_tree.parent.empty();
  if (!schedule || nranks < 2 || asked.call.block_bytes() == 0 || (asked.through_switch && !has_switch))
    throw Error(Code::kInvalidValue,
                fmt::format("prediction: {} of {} bytes by {}{} among {} ranks", collective_name(asked.call.kind),
                            asked.call.block_bytes(), algorithm_name(asked.algorithm),
                            asked.through_switch ? " through a switch" : "", nranks),
                here);
  const bool by_channels = asked.algorithm == Algorithm::kRing || asked.algorithm == Algorithm::kTree;
  const std::size_t most = by_channels ? plan.channels.size() : 1;
  const std::size_t tracks = std::min<std::size_t>(most, asked.call.elements);
  const std::uint64_t chunk = asked.chunk_bytes > 0
                                  ? asked.chunk_bytes
                                  : choose(asked.call, {.nranks = nranks}, asked.algorithm, false, false).chunk_bytes;
  WorldOfLinks world(cluster, asked.costs, static_cast<int>(tracks), asked.rails);
  std::vector<RankPrograms> sequence;
  CallPrediction result{.us = 0, .channels = static_cast<int>(tracks), .steps = 0};
  for (std::size_t track = 0; track < tracks; ++track) {
    const Channel& channel = plan.channels[track];
    CallSpec spec{schedule, asked.call, true, chunk};
    spec.call.elements = share_of(asked.call.elements, track, tracks);
    CommGraph graph = asked.through_switch ? switch_comm_graph(channel) : comm_graph(channel);
    if (asked.algorithm == Algorithm::kRelay) graph.relays = relays_of(cluster);
    require_few(spec, graph, tracks, here);
    sequence.push_back(rank_programs(spec, graph));
    if (asked.through_switch) make_switch(sequence.back().by_rank.back());
    for (const Program& program : sequence.back().by_rank) result.steps += program.steps.size();
    add_routes(world, sequence.back(), static_cast<int>(track), by_channels ? &channel : nullptr);
  }
  result.us = simulate(sequence, world.open(nranks + (asked.through_switch ? 1 : 0)), world.wires());
  return result;
}

}  // namespace slip
