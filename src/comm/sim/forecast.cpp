#include "comm/sim/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/sim/sim.hpp"
#include "comm/api/communicator_state.hpp"
#include "runtime/observers.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

constexpr int kMaxRanks = 64;
constexpr std::size_t kMaxSteps = 400'000;  // a second or two
constexpr std::size_t kQueueDepth = std::size_t{1} << 22;
constexpr int kQueues = 128, kMaxPipelined = 31;  // a wire that is pipelined is four streams, for each other rank

// In bytes per second: whole megabytes, and at least the one that a sim link must have.
std::uint64_t link_rate(double gbps) { return static_cast<std::uint64_t>(std::max(gbps * 1e3, 1.0)) * sim::kMinRate; }
Picos picos(double us) { return static_cast<Picos>(us * 1e6); }

}  // namespace

// A rank sends at the rate of a link and receives at the same time. Between ranks of one host it is their cores that
// move the bytes, two of them at that rate; ranks that have less than a core each copy and reduce as much slower.
sim::Description Forecast::machine() const {
  const int nranks = comm_.bootstrap.nranks();
  const std::vector<Placement>& places = comm_.bootstrap.placements();
  const LinkRates& rates = comm_.site.rates;
  sim::PeerDescription peers{.form = sim::PeerDescription::Form::kLinks};
  std::vector<int> hosts;
  for (int rank = 0; rank < nranks; ++rank) {
    const auto same = [&](const Placement& one) { return same_host(one, places[static_cast<std::size_t>(rank)]); };
    hosts.push_back(static_cast<int>(std::find_if(places.begin(), places.end(), same) - places.begin()));
    peers.links[fmt::format("out {}", rank)] = link_rate(rates.gbps);
    peers.links[fmt::format("in {}", rank)] = link_rate(rates.gbps);
    if (hosts.back() != rank) continue;
    const auto ranks_there = static_cast<double>(std::count_if(places.begin(), places.end(), same));
    peers.links[fmt::format("cores {}", rank)] = link_rate(rates.gbps * std::max(comm_.cores_each * ranks_there, 2.0));
  }
  for (int from = 0; from < nranks; ++from) {
    for (int to = 0; to < nranks; ++to) {
      if (from == to) continue;
      const int host = hosts[static_cast<std::size_t>(from)];
      const bool within = host == hosts[static_cast<std::size_t>(to)];
      auto& route = peers.routes.emplace_back(sim::PeerDescription::Route{
          from, to, picos(rates.latency_us), {fmt::format("out {}", from), fmt::format("in {}", to)}});
      if (within) route.links.push_back(fmt::format("cores {}", host));
    }
  }
  const double memory = kMemoryGbps * std::min(comm_.cores_each, 1.0);
  return {.name = "rank",
          .memory = 900'000'000'000'000,
          .queues = kQueues,
          .compute = {.flops = 1'000'000'000'000'000, .bandwidth = link_rate(memory)},
          .copies = {.in = 100'000'000'000, .out = 100'000'000'000},
          .peers = std::move(peers)};
}

std::vector<Scene> Forecast::scenes_of(const Call& call, bool reachable, int calls) const {
  const int nranks = comm_.bootstrap.nranks();
  if (nranks < 2 || nranks > kMaxRanks) return {};
  if (comm_.is_shared(call)) {
    const std::vector<Call> all(static_cast<std::size_t>(calls), call);
    Reachable who;
    if (reachable || comm_.memory->one_process()) who.offers = [](std::size_t, int) { return true; };
    return shared_scenes(all, nranks, who);
  }
  const Choice choice = comm_.choice_of(call, false);
  const Practice practice{choice.recipe, call, false, choice.chunk_bytes};
  return std::vector<Scene>(
      static_cast<std::size_t>(calls),
      scene_of(practice, std::span(comm_.formations).first(static_cast<std::size_t>(choice.channels))));
}

double Forecast::us(const Call& call, bool reachable, int calls, Here here) const {
  const int nranks = comm_.bootstrap.nranks();
  const std::vector<Scene> scenes = scenes_of(call, reachable, calls);
  std::size_t steps = 0;
  for (const Scene& scene : scenes) {
    for (const Program& program : scene.programs) steps += program.steps.size();
  }
  if (steps == 0 || steps > kMaxSteps)
    throw Error(Code::kInvalidValue,
                fmt::format("forecast: {} steps of {} ranks; up to {} of 2 to {} are simulated", steps, nranks,
                            kMaxSteps, kMaxRanks),
                here);
  int channels = 1;
  for (const Scene& scene : scenes) channels = std::max(channels, scene.channels);
  const PrivateScope predicting;  // no part of the program's trace
  const std::vector<Device> devices =
      sim::open_devices(machine(), nranks, {.queue_depth = kQueueDepth, .run_functions = false});
  for (std::size_t i = 0; i < devices.size(); ++i) {  // each rank reads what others have staged
    for (std::size_t j = 0; j < devices.size(); ++j) {
      if (i != j) devices[i].enable_peer_access(devices[j]);
    }
  }
  std::vector<Device> tracks;  // a rank's channels share its device
  for (const Device& device : devices) tracks.insert(tracks.end(), static_cast<std::size_t>(channels), device);
  Rehearsal rehearsal(tracks, nranks > kMaxPipelined ? Wires::kRendezvous : Wires::kPipelined, channels);
  rehearsal.set_sight(picos(comm_.site.rates.latency_us));
  for (const Scene& scene : scenes) rehearsal.add(scene);
  Plan plan = rehearsal.plan();
  const Stream stream = devices.front().stream(StreamFlags::kNonBlocking);
  const Picos begun = devices.front().now();
  stream.launch(plan);
  stream.sync();
  return static_cast<double>(devices.front().now() - begun) / 1e6 / calls;
}

}  // namespace slip
