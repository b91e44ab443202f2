#include "comm/link/link_rails.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/env.hpp"
#include "transport/socket/address.hpp"

namespace slip::comm {
namespace {

using transport::kMaxRails;
using transport::Rail;
using transport::RailPath;

// The rails of a rank, as it sends them to the others.
struct RailTable {
  std::int32_t count = 0;
  std::array<Rail, kMaxRails> rails;
};

// The interface of each channel, or nothing if the channels would not use all rails alike.
std::vector<std::string> interfaces_by_channel(const std::vector<Rail>& own, const TopologyNics& topology) {
  if (own.size() < 2 || topology.by_channel.size() < own.size()) return {};
  std::vector<std::string> result;
  const std::vector<transport::RailCandidate> candidates = transport::rail_candidates();
  for (const int number : topology.by_channel) {
    const transport::Nic& nic = topology.nics[static_cast<std::size_t>(number)];
    const auto found = std::ranges::find_if(own, [&](const Rail& rail) {
      return std::ranges::any_of(candidates, [&](const transport::RailCandidate& one) {
        return one.interface.name == rail.name() && is_nic(one, nic);
      });
    });
    if (found == own.end()) return {};
    result.emplace_back(found->name());
  }
  const std::set<std::string> first(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(own.size()));
  return first.size() == own.size() ? result : std::vector<std::string>{};
}

}  // namespace

std::vector<Rail> LinkRails::own(const std::string& rule, const std::string& control, const TopologyNics& topology) {
  const transport::InterfaceFilter filter(rule.empty() ? base::socket_interface_rule() : rule);
  const transport::SocketAddress address = transport::resolve(control, 0).front();
  if (address.is_loopback()) return {};  // all ranks are on this host
  return choose_rails(transport::rail_candidates(), {filter, address, topology.nics});
}

LinkRails::LinkRails(transport::Bootstrap& bootstrap, const std::vector<Rail>& own, const TopologyNics& topology)
    : rank_(bootstrap.rank()) {
  const std::vector<std::int32_t> counts = bootstrap.all_gather(static_cast<std::int32_t>(own.size()));
  count_ = *std::ranges::max_element(counts);
  if (count_ == 0) return;  // saves the exchange of the tables
  RailTable table;
  table.count = static_cast<std::int32_t>(own.size());
  std::ranges::copy(own, table.rails.begin());
  for (const RailTable& one : bootstrap.all_gather(table)) {
    const auto count = static_cast<std::size_t>(std::clamp<std::int32_t>(one.count, 0, kMaxRails));
    rails_.emplace_back(one.rails.begin(), one.rails.begin() + static_cast<std::ptrdiff_t>(count));
  }
  interfaces_ = interfaces_by_channel(own, topology);
}

std::size_t LinkRails::path_of(const std::vector<RailPath>& paths, int channel) const {
  const auto number = static_cast<std::size_t>(channel);
  if (number < interfaces_.size()) {
    const auto found =
        std::ranges::find_if(paths, [&](const RailPath& one) { return one.local.name() == interfaces_[number]; });
    if (found != paths.end()) return static_cast<std::size_t>(found - paths.begin());
  }
  return number % paths.size();
}

std::vector<RailPath> LinkRails::paths(int rank, int channel, RailUse use) const {
  if (count_ == 0) return {};
  std::vector<RailPath> all =
      pair_rails(rails_[static_cast<std::size_t>(rank_)], rails_[static_cast<std::size_t>(rank)]);
  std::erase_if(all, [&](const RailPath& one) { return lost_.contains(one.text()); });
  if (all.empty()) return {};
  if (use == RailUse::kBound) return {all[path_of(all, channel)]};
  const auto first = static_cast<std::size_t>(rank_ + rank + channel) % all.size();
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
  return all;
}

std::string LinkRails::text(int channels) const {
  std::string text = fmt::format("{} rails; rank {} has", count_, rank_);
  const std::vector<Rail>& own = rails_[static_cast<std::size_t>(rank_)];
  for (const Rail& rail : own) text += fmt::format("{} {}", &rail == own.data() ? "" : ",", rail.text());
  if (own.empty()) text += " one interface";
  for (int channel = 0; channel < channels && !own.empty() && count_ > 1; ++channel) {
    const auto number = static_cast<std::size_t>(channel);
    const bool given = number < interfaces_.size();
    text += fmt::format("\n  channel {}: {}{}", channel, given ? interfaces_[number] : own[number % own.size()].name(),
                        given ? ", the NIC of the topology" : "");
  }
  if (count_ > 1)
    text += fmt::format("\n  sends, receives, and calls whose number of channels is not a multiple of {}: all rails",
                        count_);
  return text;
}

}  // namespace slip::comm
