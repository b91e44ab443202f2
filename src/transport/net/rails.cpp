#include "transport/net/rails.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

namespace slip::transport {
namespace {

static_assert(std::is_trivially_copyable_v<Rail>);

// For each interface one candidate: its first address of this family that is neither loopback nor link-local.
std::vector<RailCandidate> usable(const std::vector<RailCandidate>& all, int family) {
  std::vector<RailCandidate> result;
  for (const RailCandidate& one : all) {
    const SocketAddress& address = one.interface.address;
    if (address.family() != family || address.is_loopback() || address.is_link_local()) continue;
    const auto known = [&](const RailCandidate& other) { return other.interface.name == one.interface.name; };
    if (std::ranges::none_of(result, known)) result.push_back(one);
  }
  return result;
}

// The candidates that the request selects, see choose_rails().
std::vector<RailCandidate> selected(const std::vector<RailCandidate>& all, const RailRequest& request) {
  std::vector<RailCandidate> result;
  const auto take = [&](const auto& fits) { std::ranges::copy_if(all, std::back_inserter(result), fits); };
  if (!request.filter.empty()) {
    take([&](const RailCandidate& one) { return request.filter.accepts(one.interface.name); });
    return result;
  }
  take([&](const RailCandidate& one) {
    return std::ranges::any_of(request.nics, [&](const Nic& nic) { return is_nic(one, nic); });
  });
  const auto control = std::ranges::find(all, request.control.host(),
                                         [](const RailCandidate& one) { return one.interface.address.host(); });
  if (!result.empty() || control == all.end()) return result;
  take([&](const RailCandidate& one) {
    const InterfaceHardware &hardware = one.hardware, &wanted = control->hardware;
    return &one == &*control ||
           (!hardware.bus_id.empty() && !wanted.bus_id.empty() && hardware.mbps > 0 && hardware.mbps == wanted.mbps);
  });
  return result;
}

// Keeps the rails that together have the highest rate if each carries the same number of bytes: their number times the
// rate of the slowest. A rail of unknown rate is treated as the fastest.
void keep_fastest(std::vector<RailCandidate>& rails) {
  std::vector<int> rates;
  for (const RailCandidate& one : rails) {
    if (one.hardware.mbps > 0) rates.push_back(one.hardware.mbps);
  }
  std::ranges::sort(rates, std::greater());
  const std::size_t unknown = rails.size() - rates.size();
  std::int64_t best = 0;
  int slowest = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const std::int64_t sum = static_cast<std::int64_t>(unknown + i + 1) * rates[i];
    if (sum >= best) slowest = rates[i];
    best = std::max(best, sum);
  }
  std::erase_if(rails, [&](const RailCandidate& one) { return one.hardware.mbps > 0 && one.hardware.mbps < slowest; });
}

}  // namespace

Rail::Rail(const Interface& of, int line_rate_mbps)
    : address(of.address.wire()), prefix_bits(of.prefix_bits), mbps(line_rate_mbps) {
  of.name.copy(interface, sizeof(interface) - 1);
}

std::string_view Rail::name() const { return {interface, ::strnlen(interface, sizeof(interface))}; }
std::string Rail::text() const { return fmt::format("{} ({})", name(), SocketAddress(address).host()); }

std::string RailPath::text() const {
  return fmt::format("{} to {}", local.text(), SocketAddress(remote.address).host());
}

std::vector<RailCandidate> rail_candidates() {
  std::vector<RailCandidate> result;
  for (Interface& one : list_interfaces()) {
    const InterfaceHardware hardware = hardware_of(one.name);
    result.push_back({std::move(one), hardware});
  }
  return result;
}

bool is_nic(const RailCandidate& candidate, const Nic& nic) {
  return candidate.interface.name == nic.name || (!nic.bus_id.empty() && candidate.hardware.bus_id == nic.bus_id);
}

std::vector<Rail> choose_rails(const std::vector<RailCandidate>& candidates, const RailRequest& request) {
  if (!request.control.is_tcp() || request.control.is_loopback()) return {};
  std::vector<RailCandidate> chosen = selected(usable(candidates, request.control.family()), request);
  keep_fastest(chosen);
  if (chosen.size() > kMaxRails) chosen.resize(kMaxRails);
  if (chosen.size() == 1 && chosen[0].interface.address.host() == request.control.host()) return {};
  std::vector<Rail> result;
  for (const RailCandidate& one : chosen) result.emplace_back(one.interface, one.hardware.mbps);
  return result;
}

std::vector<RailPath> pair_rails(const std::vector<Rail>& local, const std::vector<Rail>& remote) {
  std::vector<std::optional<std::size_t>> pair(local.size());  // by local rail: its remote one
  std::vector<char> taken(remote.size(), 0);
  // Pairs each free local rail with the first free remote rail that fits.
  const auto match = [&](const auto& fits) {
    for (std::size_t here = 0; here < local.size(); ++here) {
      for (std::size_t there = 0; there < remote.size() && !pair[here]; ++there) {
        if (taken[there] != 0 || !fits(here, there)) continue;
        pair[here] = there;
        taken[there] = 1;
      }
    }
  };
  std::vector<SocketAddress> ours, theirs;
  for (const Rail& one : local) ours.emplace_back(one.address);
  for (const Rail& one : remote) theirs.emplace_back(one.address);
  for (const SocketAddress& one : ours) {
    for (const SocketAddress& other : theirs) {
      if (one.host() == other.host()) return {};  // the other rank is on this host
    }
  }
  match([&](std::size_t here, std::size_t there) {
    const int bits = local[here].prefix_bits;
    return bits == remote[there].prefix_bits && ours[here].same_subnet(theirs[there], bits);
  });
  const auto same_family = [&](std::size_t here, std::size_t there) {
    return ours[here].family() == theirs[there].family();
  };
  match([&](std::size_t here, std::size_t there) {
    return same_family(here, there) && local[here].name() == remote[there].name();
  });
  match([&](std::size_t here, std::size_t there) { return same_family(here, there) && here == there; });
  std::vector<RailPath> result;
  for (std::size_t here = 0; here < local.size(); ++here) {
    if (pair[here]) result.push_back({local[here], remote[*pair[here]]});
  }
  return result;
}

}  // namespace slip::transport
