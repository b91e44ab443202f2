#include "comm/api/options.hpp"

#include <limits>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/hash.hpp"
#include "comm/plan/primitive.hpp"

namespace slip::comm {
namespace {

void require_channels(int min, int max, Here here) {
  const auto possible = [](int count) { return count >= 0 && count <= kMaxChannels; };
  if (possible(min) && possible(max) && (max == 0 || min <= max)) return;
  base::fail(ErrorCode::kInvalidValue, here,
             "min_channels {} and max_channels {} of a communicator (or SLIP_MIN_CHANNELS and "
             "SLIP_MAX_CHANNELS): each must be 1 to {}, the first not more than the second; 0 leaves it "
             "to the communicator",
             min, max, kMaxChannels);
}

// If the program left `option` at kAuto, reads its value from an environment variable. `name`: the variable's text.
// `expected`: the valid names, for the error.
template <class Option>
void set_by_name(Option& option, std::optional<Option> (*find)(std::string_view), const char* variable,
                 const std::string& name, const char* expected, Here here) {
  if (name.empty() || option != Option::kAuto) return;
  const std::optional<Option> found = find(name);
  if (!found) base::fail(ErrorCode::kInvalidValue, here, "{}={}: {} is expected", variable, name, expected);
  option = *found;
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

std::optional<SingleCopy> single_copy_of(std::string_view name) {
  if (name == "auto") return SingleCopy::kAuto;
  if (name == "always") return SingleCopy::kAlways;
  if (name == "never") return SingleCopy::kNever;
  return std::nullopt;
}

RequestedOptions RequestedOptions::of(const CommunicatorOptions& options, Here here) {
  RequestedOptions result{.heartbeat_ms = options.heartbeat.count(),
                          .silence_ms = options.silence.count(),
                          .algorithm = options.algorithm,
                          .transport = options.transport,
                          .deterministic = options.deterministic,
                          .min_channels = options.min_channels != 0 ? options.min_channels : base::env().min_channels,
                          .max_channels = options.max_channels != 0 ? options.max_channels : base::env().max_channels};
  require_channels(result.min_channels, result.max_channels, here);
  set_by_name(result.algorithm, algorithm_of, "SLIP_ALGORITHM", base::env().algorithm,
              "auto, direct, ring, tree, doubling or relay", here);
  set_by_name(result.transport, transport_of, "SLIP_TRANSPORT", base::env().transport, "auto or net", here);
  set_by_name(result.single_copy, single_copy_of, "SLIP_SINGLE_COPY", base::env_text("SLIP_SINGLE_COPY"),
              "auto, always or never", here);
  const std::string& host = options.host.empty() ? base::env().host_id : options.host;
  if (!host.empty()) result.host = base::hash_of(host);
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
  const auto is = [&](std::string_view kind) {
    return info.name == kind || (info.name.starts_with(kind) && info.name[kind.size()] == ':');
  };
  if (is("cpu") || is("cuda") || info.virtual_time) return;
  base::fail(ErrorCode::kUnsupported, here, "{} on device '{}': ranks run on cpu, cuda and sim devices", what,
             info.label);
}

void check_options(const CommunicatorOptions& options, int nranks, Here here) {
  const auto positive = [&](std::chrono::milliseconds time, const char* name) {
    if (time.count() <= 0)
      base::fail(ErrorCode::kInvalidValue, here, "{} of a communicator is {} ms: it must be positive", name,
                 time.count());
  };
  positive(options.timeout, "timeout");
  positive(options.init_timeout, "init_timeout");
  positive(options.heartbeat, "heartbeat");
  if (options.silence <= options.heartbeat)
    base::fail(ErrorCode::kInvalidValue, here,
               "silence of a communicator is {} ms and heartbeat {} ms: a rank counts as lost after a silence, "
               "so silence must be longer than heartbeat",
               options.silence.count(), options.heartbeat.count());
  if (options.sockets < 0 || options.sockets > transport::kNetMaxSockets)
    base::fail(ErrorCode::kInvalidValue, here,
               "a communicator with {} sockets to each rank: 1 to {} are possible, or 0 for the default",
               options.sockets, transport::kNetMaxSockets);
  if (options.topo_device < -1)
    base::fail(ErrorCode::kInvalidValue, here,
               "topo_device of a communicator is {}: it counts the devices of the topology file from 0, and "
               "-1 leaves it to the rank's number on its host",
               options.topo_device);
  constexpr int kMax = std::numeric_limits<decltype(BufferLocation::rank)>::max();
  if (nranks > kMax)
    base::fail(ErrorCode::kUnsupported, here, "a communicator of {} ranks: at most {} are possible", nranks, kMax);
}

transport::BootstrapOptions bootstrap_options(const CommunicatorOptions& options,
                                              std::shared_ptr<transport::AbortFlag> abort) {
  transport::BootstrapOptions result;
  result.timeout = options.init_timeout;
  result.heartbeat = {options.heartbeat, options.silence};
  result.abort = std::move(abort);
  result.setup_follows = true;  // RankConnections ends init with set_call({})
  return result;
}

const std::string& topology_file(const CommunicatorOptions& options) {
  return options.topology.empty() ? base::env().topo_file : options.topology;
}

transport::NetOptions net_options_of(const CommunicatorOptions& options) {
  transport::NetOptions result;
  const int sockets = options.sockets > 0 ? options.sockets : base::env().sockets;
  result.sockets = sockets > 0 ? sockets : 1;
  result.zero_copy_from =
      options.zero_copy_from > 0 ? options.zero_copy_from : static_cast<std::size_t>(base::env().zero_copy);
  result.silence_ns = std::chrono::nanoseconds(options.silence).count();
  return result;
}

void require_same_requests(const std::vector<RequestedOptions>& all, int rank, Here here) {
  for (std::size_t other = 1; other < all.size(); ++other) {
    if (all[other].heartbeat_ms == all[0].heartbeat_ms && all[other].silence_ms == all[0].silence_ms) continue;
    base::fail(ErrorCode::kMismatch, here,
               "rank 0 has a heartbeat of {} ms and a silence of {} ms, rank {} of {} ms and {} ms: all "
               "ranks must have the same",
               all[0].heartbeat_ms, all[0].silence_ms, other, all[other].heartbeat_ms, all[other].silence_ms);
  }
  const std::string mine = all[static_cast<std::size_t>(rank)].text();
  for (std::size_t other = 0; other < all.size(); ++other) {
    const std::string theirs = all[other].text();
    if (theirs == mine) continue;
    base::fail(ErrorCode::kMismatch, here,
               "rank {} asks for {}, rank {} for {}: all ranks of a communicator need the same options", rank, mine,
               other, theirs);
  }
}

}  // namespace slip::comm
