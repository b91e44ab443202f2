// The options of a communicator: what is possible, and what all ranks must have the same.
#pragma once

#include <optional>
#include <string_view>

#include "slip/communicator.hpp"
#include "transport/bootstrap/bootstrap.hpp"
#include "transport/net/net.hpp"

namespace slip {

// Throws if the device is not one that ranks can be on.
void require_rank_device(const DeviceInfo& info, std::string_view what, Here here);
// Throws what cannot be. A wrong rank is left to the root, which tells all ranks.
void check_options(const CommunicatorOptions& options, int nranks, Here here);

BootstrapOptions bootstrap_options(const CommunicatorOptions& options, std::shared_ptr<AbortFlag> abort);

// Which document describes the rank's host; empty: none.
const std::string& topology_file(const CommunicatorOptions& options);

// How this rank makes the lines on which it sends.
NetOptions line_options(const CommunicatorOptions& options);

// All ranks call it. Throws on all of them if some would call another lost sooner than it gives signs of life.
void require_same_heartbeat(Bootstrap& bootstrap, const CommunicatorOptions& options, Here here);

// By the name that people give; nothing if there is none of it.
std::optional<Algorithm> algorithm_of(std::string_view name);
std::optional<Transport> transport_of(std::string_view name);

// What is asked for, by option or by the environment; the same on all ranks, but for the host.
inline constexpr int kMaxChannels = 32;
struct Wishes {
  Algorithm algorithm = Algorithm::kAuto;
  Transport transport = Transport::kAuto;
  bool deterministic = false;
  int min_channels = 0, max_channels = 0;  // 0: chosen
  std::uint64_t host = 0;                  // a hash of its name; 0: where it really is

  static Wishes of(const CommunicatorOptions& options, Here here);
  std::string text() const;
};
// Throws on all ranks if they differ. `all`: by rank.
void require_same_wishes(const std::vector<Wishes>& all, int rank, Here here);

}  // namespace slip
