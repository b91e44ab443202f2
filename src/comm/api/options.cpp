#include "comm/api/options.hpp"

#include <fmt/format.h>

#include <limits>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "comm/plan/primitive.hpp"

namespace slip {
namespace {

struct Beat {
  std::int64_t heartbeat_ms = 0, silence_ms = 0;
  friend bool operator==(const Beat&, const Beat&) = default;
};

void require_channels(int min, int max, Here here) {
  const auto possible = [](int count) { return count >= 0 && count <= kMaxChannels; };
  if (possible(min) && possible(max) && (max == 0 || min <= max)) return;
  throw Error(Code::kInvalidValue,
              fmt::format("min_channels {} and max_channels {} of a communicator (or SLIP_MIN_CHANNELS and "
                          "SLIP_MAX_CHANNELS): each must be 1 to {}, the first not more than the second; 0 leaves it "
                          "to the communicator",
                          min, max, kMaxChannels),
              here);
}

}  // namespace

std::optional<Algorithm> algorithm_of(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Algorithm::kRelay); ++i) {
    if (name == algorithm_name(static_cast<Algorithm>(i))) return static_cast<Algorithm>(i);
  }
  return std::nullopt;
}

std::optional<Transport> transport_of(std::string_view name) {
  if (name == "auto") return Transport::kAuto;
  if (name == "net") return Transport::kNet;
  return std::nullopt;
}

RequestedOptions RequestedOptions::of(const CommunicatorOptions& options, Here here) {
  RequestedOptions result{.algorithm = options.algorithm,
                          .transport = options.transport,
                          .deterministic = options.deterministic,
                          .min_channels = options.min_channels != 0 ? options.min_channels : env().min_channels,
                          .max_channels = options.max_channels != 0 ? options.max_channels : env().max_channels};
  require_channels(result.min_channels, result.max_channels, here);
  if (const std::string& name = env().algorithm; !name.empty() && result.algorithm == Algorithm::kAuto) {
    const std::optional<Algorithm> found = algorithm_of(name);
    if (!found)
      throw Error(Code::kInvalidValue,
                  fmt::format("SLIP_ALGORITHM={}: auto, direct, ring, tree, doubling or relay is expected", name),
                  here);
    result.algorithm = *found;
  }
  if (const std::string& name = env().transport; !name.empty() && result.transport == Transport::kAuto) {
    const std::optional<Transport> found = transport_of(name);
    if (!found) throw Error(Code::kInvalidValue, fmt::format("SLIP_TRANSPORT={}: auto or net is expected", name), here);
    result.transport = *found;
  }
  const std::string& host = options.host.empty() ? env().host_id : options.host;
  if (!host.empty()) result.host = hash_of(host);
  return result;
}

std::string RequestedOptions::text() const {
  const auto channels = [](int count) { return count == 0 ? "any" : std::to_string(count); };
  return fmt::format("algorithm {}, transport {}, {}, min_channels {}, max_channels {}", algorithm_name(algorithm),
                     transport == Transport::kNet ? "net" : "auto",
                     deterministic ? "deterministic" : "not deterministic", channels(min_channels),
                     channels(max_channels));
}

void require_rank_device(const DeviceInfo& info, std::string_view what, Here here) {
  if (info.name == "cpu" || info.name.starts_with("cpu:") || info.virtual_time) return;
  throw Error(Code::kUnsupported,
              fmt::format("{} on device '{}': only ranks on cpu and sim devices are supported yet", what, info.label),
              here);
}

void check_options(const CommunicatorOptions& options, int nranks, Here here) {
  const auto positive = [&](std::chrono::milliseconds time, const char* name) {
    if (time.count() <= 0)
      throw Error(Code::kInvalidValue,
                  fmt::format("{} of a communicator is {} ms: it must be positive", name, time.count()), here);
  };
  positive(options.timeout, "timeout");
  positive(options.init_timeout, "init_timeout");
  positive(options.heartbeat, "heartbeat");
  if (options.silence <= options.heartbeat)
    throw Error(
        Code::kInvalidValue,
        fmt::format("silence of a communicator is {} ms and heartbeat {} ms: a rank counts as lost after a silence, "
                    "so silence must be longer than heartbeat",
                    options.silence.count(), options.heartbeat.count()),
        here);
  if (options.sockets < 0 || options.sockets > kNetMaxSockets)
    throw Error(Code::kInvalidValue,
                fmt::format("a communicator with {} sockets to each rank: 1 to {} are possible, or 0 for the default",
                            options.sockets, kNetMaxSockets),
                here);
  if (options.topo_device < -1)
    throw Error(
        Code::kInvalidValue,
        fmt::format("topo_device of a communicator is {}: it counts the devices of the topology file from 0, and "
                    "-1 leaves it to the rank's number on its host",
                    options.topo_device),
        here);
  constexpr int kMax = std::numeric_limits<decltype(BufferLocation::rank)>::max();
  if (nranks > kMax)
    throw Error(Code::kUnsupported, fmt::format("a communicator of {} ranks: at most {} are possible", nranks, kMax),
                here);
}

BootstrapOptions bootstrap_options(const CommunicatorOptions& options, std::shared_ptr<AbortFlag> abort) {
  BootstrapOptions result;
  result.timeout = options.init_timeout;
  result.heartbeat = {options.heartbeat, options.silence};
  result.abort = std::move(abort);
  result.setup_follows = true;  // RankConnections ends init with set_call({})
  return result;
}

const std::string& topology_file(const CommunicatorOptions& options) {
  return options.topology.empty() ? env().topo_file : options.topology;
}

NetOptions net_options_of(const CommunicatorOptions& options) {
  NetOptions result;
  const int sockets = options.sockets > 0 ? options.sockets : env().sockets;
  result.sockets = sockets > 0 ? sockets : 1;
  result.zero_copy_from =
      options.zero_copy_from > 0 ? options.zero_copy_from : static_cast<std::size_t>(env().zero_copy);
  return result;
}

void require_same_heartbeat(Bootstrap& bootstrap, const CommunicatorOptions& options, Here here) {
  const std::vector<Beat> beats = bootstrap.all_gather(Beat{options.heartbeat.count(), options.silence.count()});
  for (std::size_t rank = 1; rank < beats.size(); ++rank) {
    if (beats[rank] == beats[0]) continue;
    throw Error(
        Code::kMismatch,
        fmt::format("rank 0 has a heartbeat of {} ms and a silence of {} ms, rank {} of {} ms and {} ms: all "
                    "ranks must have the same",
                    beats[0].heartbeat_ms, beats[0].silence_ms, rank, beats[rank].heartbeat_ms, beats[rank].silence_ms),
        here);
  }
}

void require_same_requests(const std::vector<RequestedOptions>& all, int rank, Here here) {
  for (std::size_t other = 0; other < all.size(); ++other) {
    const RequestedOptions& mine = all[static_cast<std::size_t>(rank)];
    if (all[other].algorithm == mine.algorithm && all[other].transport == mine.transport &&
        all[other].deterministic == mine.deterministic && all[other].min_channels == mine.min_channels &&
        all[other].max_channels == mine.max_channels)
      continue;
    throw Error(Code::kMismatch,
                fmt::format("rank {} asks for {}, rank {} for {}: all ranks of a communicator need the same options",
                            rank, mine.text(), other, all[other].text()),
                here);
  }
}

}  // namespace slip
