#include "comm/sim/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/api/communicator_state.hpp"
#include "runtime/observers.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

constexpr int kMaxRanks = 64;
constexpr std::size_t kMaxSteps = 400'000;  // a second or two
constexpr std::size_t kQueueDepth = std::size_t{1} << 22;
constexpr int kQueues = 128, kMaxPipelined = 31;  // a wire that is pipelined is four streams, for each other rank

std::uint64_t megabytes(double gbps) { return static_cast<std::uint64_t>(std::max(gbps * 1e3, 1.0)); }
Picos picos(double us) { return static_cast<Picos>(us * 1e6); }

}  // namespace

// A rank sends at the rate of a link and receives at the same time. Between ranks of one host it is their cores that
// move the bytes, two of them at that rate; ranks that have less than a core each copy and reduce as much slower.
std::string Forecast::machine() const {
  const int nranks = comm_.bootstrap.nranks();
  const std::vector<Placement>& places = comm_.bootstrap.placements();
  const LinkRates& rates = comm_.tuning.rates;
  std::string links, paths;
  const auto add_link = [&](const std::string& name, double gbps) {
    links += fmt::format("{}\"{}\": \"{} MB/s\"", links.empty() ? "" : ", ", name, megabytes(gbps));
  };
  std::vector<int> hosts;
  for (int rank = 0; rank < nranks; ++rank) {
    const auto same = [&](const Placement& one) { return same_host(one, places[static_cast<std::size_t>(rank)]); };
    hosts.push_back(static_cast<int>(std::find_if(places.begin(), places.end(), same) - places.begin()));
    add_link(fmt::format("out {}", rank), rates.gbps);
    add_link(fmt::format("in {}", rank), rates.gbps);
    if (hosts.back() != rank) continue;
    const auto ranks_there = static_cast<double>(std::count_if(places.begin(), places.end(), same));
    add_link(fmt::format("cores {}", rank), rates.gbps * std::max(comm_.cores_each * ranks_there, 2.0));
  }
  for (int from = 0; from < nranks; ++from) {
    for (int to = 0; to < nranks; ++to) {
      const int host = hosts[static_cast<std::size_t>(from)];
      const bool within = host == hosts[static_cast<std::size_t>(to)];
      if (from != to)
        paths +=
            fmt::format("{}{{\"from\": {}, \"to\": {}, \"latency\": \"{} ps\", \"links\": [\"out {}\", \"in {}\"{}]}}",
                        paths.empty() ? "" : ", ", from, to, picos(rates.latency_us), from, to,
                        within ? fmt::format(", \"cores {}\"", host) : "");
    }
  }
  const double memory = kMemoryGbps * std::min(comm_.cores_each, 1.0);
  return fmt::format(
      "sim:{{\"name\": \"rank\", \"memory\": \"900 TB\", \"queues\": {},"
      " \"compute\": {{\"flops\": \"1000 TFLOP/s\", \"bandwidth\": \"{} MB/s\"}},"
      " \"copies\": {{\"in\": \"100 GB/s\", \"out\": \"100 GB/s\"}},"
      " \"peers\": {{\"form\": \"links\", \"links\": {{{}}}, \"paths\": [{}]}}}}",
      kQueues, megabytes(memory), links, paths);
}

std::vector<RankPrograms> Forecast::rank_programs_of(const Call& call, bool reachable, int calls) const {
  const int nranks = comm_.bootstrap.nranks();
  if (nranks < 2 || nranks > kMaxRanks) return {};
  if (comm_.is_shared(call)) {
    const std::vector<Call> all(static_cast<std::size_t>(calls), call);
    Reachable who;
    if (reachable || comm_.memory->one_process()) who.offers = [](std::size_t, int) { return true; };
    return host_rank_programs(all, nranks, who);
  }
  const ScheduleChoice choice = comm_.choice_of(call, false);
  const CallSpec spec{choice.schedule, call, false, choice.chunk_bytes};
  return std::vector<RankPrograms>(
      static_cast<std::size_t>(calls),
      rank_programs(spec, std::span(comm_.graphs).first(static_cast<std::size_t>(choice.channels))));
}

double Forecast::us(const Call& call, bool reachable, int calls, Here here) const {
  const int nranks = comm_.bootstrap.nranks();
  const std::vector<RankPrograms> sequence = rank_programs_of(call, reachable, calls);
  std::size_t steps = 0;
  for (const RankPrograms& programs : sequence) {
    for (const Program& program : programs.by_rank) steps += program.steps.size();
  }
  if (steps == 0 || steps > kMaxSteps)
    throw Error(Code::kInvalidValue,
                fmt::format("forecast: {} steps of {} ranks; up to {} of 2 to {} are simulated", steps, nranks,
                            kMaxSteps, kMaxRanks),
                here);
  int channels = 1;
  for (const RankPrograms& programs : sequence) channels = std::max(channels, programs.channels);
  const PrivateScope predicting;  // no part of the program's trace
  const std::vector<Device> devices =
      Device::open_all(machine(), nranks, {.queue_depth = kQueueDepth, .run_functions = false});
  for (std::size_t i = 0; i < devices.size(); ++i) {  // each rank reads what others have staged
    for (std::size_t j = 0; j < devices.size(); ++j) {
      if (i != j) devices[i].enable_peer_access(devices[j]);
    }
  }
  std::vector<Device> tracks;  // a rank's channels share its device
  for (const Device& device : devices) tracks.insert(tracks.end(), static_cast<std::size_t>(channels), device);
  ProgramSimulation simulation(tracks, nranks > kMaxPipelined ? WireKind::kRendezvous : WireKind::kPipelined, channels);
  simulation.set_flag_latency(picos(comm_.tuning.rates.latency_us));
  for (const RankPrograms& programs : sequence) simulation.add(programs);
  Plan plan = simulation.plan();
  const Stream stream = devices.front().stream(StreamFlags::kNonBlocking);
  const Picos begun = devices.front().now();
  stream.launch(plan);
  stream.sync();
  return static_cast<double>(devices.front().now() - begun) / 1e6 / calls;
}

}  // namespace slip
