// Checks of a communicator's options: which values are valid, and which all ranks must share. RankConnections and
// Communicator::init use them.
#pragma once

#include <optional>
#include <string_view>

#include "comm/host/copy_choice.hpp"
#include "slip/communicator.hpp"
#include "transport/bootstrap/bootstrap.hpp"
#include "transport/net/net.hpp"

namespace slip::comm {

// Throws if ranks cannot run on the device. `what`: the call or object that uses the device, for the error.
void require_rank_device(const DeviceInfo& info, std::string_view what, Here here);
// Throws if an option is invalid. The bootstrap root checks the rank number, because it can notify all ranks.
void check_options(const CommunicatorOptions& options, int nranks, Here here);

transport::BootstrapOptions bootstrap_options(const CommunicatorOptions& options,
                                              std::shared_ptr<transport::AbortFlag> abort);

// The topology file that describes the rank's host; empty: none.
const std::string& topology_file(const CommunicatorOptions& options);

// How this rank opens the connections on which it sends.
transport::NetOptions net_options_of(const CommunicatorOptions& options);

// The value that has this name in the environment and in files; none if the name is unknown.
std::optional<Algorithm> algorithm_of(std::string_view name);
std::optional<Transport> transport_of(std::string_view name);
std::optional<SingleCopy> single_copy_of(std::string_view name);

inline constexpr int kMaxChannels = 32;

// The values that the user set by options or the environment. All ranks must set the same values, except for the host.
struct RequestedOptions {
  // If they differed, a rank could be declared lost before it sends its next heartbeat.
  std::int64_t heartbeat_ms = 0, silence_ms = 0;
  Algorithm algorithm = Algorithm::kAuto;
  Transport transport = Transport::kAuto;
  bool deterministic = false;
  int min_channels = 0, max_channels = 0;      // 0: the communicator chooses
  std::uint64_t host = 0;                      // a hash of the requested host name; 0: the real host
  SingleCopy single_copy = SingleCopy::kAuto;  // ranks may differ

  static RequestedOptions of(const CommunicatorOptions& options, Here here);
  std::string text() const;
};
// Throws on all ranks if their requests differ. `all`: by rank.
void require_same_requests(const std::vector<RequestedOptions>& all, int rank, Here here);

}  // namespace slip::comm
