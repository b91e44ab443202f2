#include "transport/net/net_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/thread.hpp"

namespace slip::transport {
namespace {

constexpr std::string_view kPlugin = "plugin:";
constexpr const char *kTcp = "tcp", *kUcx = "ucx";
constexpr const char* kNcclVariable = "NCCL_NET_PLUGIN";

bool names_plugin(const std::string& requested) {
  return requested.starts_with(kPlugin) && requested.size() > kPlugin.size();
}

std::string joined(const std::vector<std::string>& all) { return fmt::format("{}", fmt::join(all, ", ")); }

// Whether the kernel has a driver of an RDMA device. All networks of UCX but TCP need one.
bool has_rdma_device() {
  std::error_code error;
  return std::filesystem::directory_iterator("/sys/class/infiniband", error) != std::filesystem::directory_iterator();
}

std::string ucx_text(const UcxReport& report) {
  return fmt::format("{} with {}{}", report.version, joined(report.transports),
                     report.reaches_cuda ? ", also for CUDA memory" : "");
}

// UCX if it has a network that is not plain TCP. UCX is not loaded on a host without such a device: it would change the
// process, see UcxLibrary in net_ucx/ucx_worker.hpp.
NetChoice choose_automatically() {
  const auto tcp = [](const std::string& why) { return NetChoice{&net_tcp(), kTcp, why}; };
  if (base::env().ucx_library.empty() && !has_rdma_device())
    return tcp("no RDMA device on this host, so UCX would use TCP, too");
  const UcxReport report = ask_ucx();
  if (report.version.empty()) return tcp(report.problem);
  const std::vector<std::string> fast = fast_networks(report.transports);
  if (fast.empty()) return tcp(fmt::format("no network but TCP in {}", ucx_text(report)));
  return {&net_ucx(), kUcx, fmt::format("{} in {}", joined(fast), ucx_text(report))};
}

NetChoice choose_plugin(const std::string& name, const std::string& variable) {
  const PluginNet plugin = net_plugin(name);
  return {plugin.net, fmt::format("{}{}", kPlugin, plugin.name), fmt::format("{}: {}", variable, plugin.text), false};
}

// The plug-in of NCCL_NET_PLUGIN, which applies if SLIP_NET is not set. The variable holds a list; as in NCCL, the
// first plug-in that can be loaded is used. None: the variable names no plug-in.
std::optional<NetChoice> choose_nccl_plugin() {
  const std::string list = base::env_text(kNcclVariable);
  if (list.empty() || ::strcasecmp(list.c_str(), "none") == 0) return std::nullopt;
  std::string reasons;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    try {
      return choose_plugin(list.substr(begin, end - begin), fmt::format("{}={}", kNcclVariable, list));
    } catch (const Error& error) {
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", base::bare_text(error));
    }
    begin = end + 1;
  }
  base::fail(ErrorCode::kIo, {}, "{}={}: {}; SLIP_NET=tcp uses TCP instead", kNcclVariable, list, reasons);
}

}  // namespace

void require_known_net(const std::string& requested) {
  if (requested.empty() || requested == kTcp || requested == kUcx || names_plugin(requested)) return;
  base::fail(ErrorCode::kInvalidValue, {},
             "SLIP_NET={}: tcp, ucx or plugin:NAME is expected (NAME: of a network plug-in of NCCL, or the path of its "
             "library); unset it for an automatic choice",
             requested);
}

NetChoice choose_net(const std::string& requested) {
  require_known_net(requested);
  if (requested.empty()) {
    const std::optional<NetChoice> plugin = choose_nccl_plugin();
    return plugin ? *plugin : choose_automatically();
  }
  if (requested == kTcp) return {&net_tcp(), kTcp, "SLIP_NET=tcp", false};
  if (requested == kUcx) {
    const Net& net = net_ucx();
    const UcxReport report = ask_ucx();
    const bool is_slow = fast_networks(report.transports).empty();
    return {&net, kUcx,
            fmt::format("SLIP_NET=ucx: {}{}", ucx_text(report),
                        is_slow ? "; no network but TCP, over which SLIP_NET=tcp is faster" : ""),
            false};
  }
  return choose_plugin(requested.substr(kPlugin.size()), "SLIP_NET=" + requested);
}

const NetChoice& net_choice() {
  struct Made {
    NetChoice choice = choose_net(base::env().net);
  };
  return base::process_wide<Made>().choice;
}

NetOffer NetOffer::of(const NetChoice& choice) {
  if (choice.name.size() > kMaxName)
    base::fail(ErrorCode::kInvalidValue, {}, "SLIP_NET={}: a name has {} characters at most, this one has {}",
               choice.name, kMaxName, choice.name.size());
  NetOffer offer;
  choice.name.copy(offer.name, kMaxName);
  offer.automatic = choice.automatic;
  return offer;
}

// The bytes may come from another rank, so they need not end with a zero.
std::string_view NetOffer::name_text() const { return {name, ::strnlen(name, kMaxName)}; }

NetAgreement agree_on_net(std::span<const NetOffer> offers) {
  const auto other = std::find_if(offers.begin(), offers.end(),
                                  [&](const NetOffer& one) { return one.name_text() != offers[0].name_text(); });
  if (other == offers.end()) return {};
  const auto rank = static_cast<std::size_t>(other - offers.begin());
  const auto found = [&](std::size_t at) {
    const std::string_view name = offers[at].name_text();
    return fmt::format("rank {} uses the network {} ({})", at, name,
                       offers[at].automatic        ? "chosen automatically"
                       : name.starts_with(kPlugin) ? "SLIP_NET or NCCL_NET_PLUGIN names it"
                                                   : "SLIP_NET names it");
  };
  // A rank that uses TCP because SLIP_NET names it agrees with the fallback.
  const bool replaceable = std::all_of(offers.begin(), offers.end(),
                                       [](const NetOffer& one) { return one.automatic || one.name_text() == kTcp; });
  if (replaceable) return {true, fmt::format("{}, {}: all ranks can use TCP", found(0), found(rank))};
  base::fail(ErrorCode::kMismatch, {},
             "{}, {}: all ranks of a communicator need the same network; set SLIP_NET to the same value for all of "
             "them, or to tcp; SLIP_DEBUG=net and slip topo explain a rank's choice",
             found(0), found(rank));
}

}  // namespace slip::transport
