#include "comm/sim/predict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "backend/sim/sim.hpp"
#include "comm/placement/formations.hpp"
#include "comm/plan/tuning.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

constexpr double kMaxSteps = 1e6;  // some seconds, and a gigabyte
constexpr std::size_t kQueueDepth = std::size_t{1} << 22;
// Of a sim device. Streams that share one would wait for each other, and a wire that is pipelined is four.
constexpr int kQueues = 128;
constexpr std::size_t kMaxPipelined = 31, kMaxWires = 126;

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
    for (const TopoSystem& system : cluster.nodes) {
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
    const double latency_us = within ? costs_.latency_us : costs_.net_latency_us;
    routes_.push_back({from * tracks_ + track, to * tracks_ + track, picos(latency_us), std::move(ways)});
  }

  Wires wires() const { return max_wires_ > kMaxPipelined ? Wires::kRendezvous : Wires::kPipelined; }
  std::vector<Device> open(int ranks) const {
    sim::PeerDescription peers{.form = sim::PeerDescription::Form::kLinks, .routes = routes_};
    for (const auto& [name, gbps] : rates_) peers.links[name] = link_rate(gbps);
    const sim::Description description{
        .name = "rank",
        .memory = 900'000'000'000'000,
        .queues = kQueues,
        .compute = {.flops = 1'000'000'000'000'000, .bandwidth = link_rate(memory_gbps() / tracks_)},
        .copies = {.in = 100'000'000'000, .out = 100'000'000'000},
        .peers = std::move(peers)};
    return sim::open_devices(description, ranks * tracks_, {.queue_depth = kQueueDepth, .run_functions = false});
  }

 private:
  static constexpr int kInNetwork = -1;
  RankPlace place_of(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return index < cluster_.ranks.size() ? cluster_.ranks[index] : RankPlace{kInNetwork, 0};
  }
  const TopoSystem& system(int node) const { return *paths_[of_node_[static_cast<std::size_t>(node)]].first; }
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
    const TopoSystem& first = cluster_.nodes.front();
    const bool gpus = first.nodes[static_cast<std::size_t>(first.devices.front())].kind == TopoKind::kGpu;
    return gpus ? 2000 : 20;
  }
  // In bytes per second: whole megabytes, and at least the one that a sim link must have.
  static std::uint64_t link_rate(double gbps) {
    return static_cast<std::uint64_t>(std::max(gbps * 1e3, 1.0)) * sim::kMinRate;
  }
  static Picos picos(double us) { return static_cast<Picos>(std::max(us, 0.0) * 1e6); }

  const Cluster& cluster_;
  const PredictedCosts& costs_;
  const int tracks_;
  const bool rails_;
  std::vector<std::pair<const TopoSystem*, TopoPaths>> paths_;  // of machines that differ
  std::vector<std::size_t> of_node_;
  std::set<std::tuple<int, int, int>> added_;
  std::map<std::pair<int, int>, std::size_t> wires_;  // out of a rank's track
  std::size_t max_wires_ = 0;
  std::map<std::string, double> rates_;
  std::vector<sim::PeerDescription::Route> routes_;
};

void add_routes(WorldOfLinks& world, const Scene& scene, int track, const Channel* channel) {
  for (std::size_t rank = 0; rank < scene.programs.size(); ++rank) {
    for (const Primitive& step : scene.programs[rank].steps) {
      if (step.kind == Primitive::Kind::kSend)
        world.add(static_cast<int>(rank), static_cast<int>(step.whom), track, channel);
    }
  }
}

// Channel `index` of `count` carries these elements.
std::uint64_t share_of(std::uint64_t elements, std::size_t index, std::size_t count) {
  return elements * (index + 1) / count - elements * index / count;
}

// By the first piece of the first rank: before the programs are written, which alone could fill the memory.
void require_few(const Practice& practice, const Formation& formation, std::size_t tracks, Here here) {
  const auto nranks = static_cast<int>(formation.order.size());
  const MessagePlan plan(*practice.recipe, {practice.call, 0, nranks, practice.in_place, practice.chunk_bytes},
                         {&formation, 1});
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
double simulate(std::span<const Scene> scenes, const std::vector<Device>& devices, Wires wires) {
  Rehearsal rehearsal(devices, wires, static_cast<int>(scenes.size()));
  for (std::size_t track = 0; track < scenes.size(); ++track) rehearsal.add(scenes[track], static_cast<int>(track));
  Plan plan = rehearsal.plan();
  const Stream stream = devices.front().stream(StreamFlags::kNonBlocking);
  const Picos begun = devices.front().now();
  stream.launch(plan);
  stream.sync();
  return static_cast<double>(devices.front().now() - begun) / 1e6;
}

}  // namespace

CallPrediction predict(const Cluster& cluster, const ChannelPlan& plan, const PredictionAsked& asked, Here here) {
  const auto nranks = static_cast<int>(cluster.ranks.size());
  const Recipe* const recipe = find_recipe(asked.algorithm, asked.call.kind);
  const bool by_tree = asked.algorithm == Algorithm::kTree && asked.call.kind == Collective::kAllReduce;
  const bool has_switch = by_tree && !plan.channels.empty() && !plan.channels.front().switch_tree.parent.empty();
  if (!recipe || nranks < 2 || asked.call.block_bytes() == 0 || (asked.through_switch && !has_switch))
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
  std::vector<Scene> scenes;
  CallPrediction result{.us = 0, .channels = static_cast<int>(tracks), .steps = 0};
  for (std::size_t track = 0; track < tracks; ++track) {
    const Channel& channel = plan.channels[track];
    Practice practice{recipe, asked.call, true, chunk};
    practice.call.elements = share_of(asked.call.elements, track, tracks);
    Formation formation = asked.through_switch ? switch_formation_of(channel) : formation_of(channel);
    if (asked.algorithm == Algorithm::kRelay) formation.relays = relays_of(cluster);
    require_few(practice, formation, tracks, here);
    scenes.push_back(scene_of(practice, formation));
    if (asked.through_switch) make_switch(scenes.back().programs.back());
    for (const Program& program : scenes.back().programs) result.steps += program.steps.size();
    add_routes(world, scenes.back(), static_cast<int>(track), by_channels ? &channel : nullptr);
  }
  result.us = simulate(scenes, world.open(nranks + (asked.through_switch ? 1 : 0)), world.wires());
  return result;
}

}  // namespace slip
