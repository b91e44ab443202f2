// Chooses the network for messages between hosts: TCP (net.hpp), UCX or a plug-in. SLIP_NET names it; without SLIP_NET
// it is chosen automatically. Each process makes one choice. The ranks of a communicator compare their choices with
// agree_on_net().
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/net/net.hpp"

namespace slip::transport {

// The network over UCX (net_ucx/). Throws if this build has no UCX, if UCX's library cannot be loaded, or if it
// has no transport that it may use.
const Net& net_ucx();

// The version and the transports of UCX in this process, for the automatic choice.
struct UcxReport {
  std::string version;                  // "UCX 1.13.1 (/usr/lib/libucp.so.0)"; "": UCX cannot be used
  std::string problem;                  // why it cannot be used
  std::vector<std::string> transports;  // "tcp/eth0"
  bool reaches_cuda = false;            // UCX was built with CUDA
};
UcxReport ask_ucx();

// The transports between hosts that are not plain TCP. The others move bytes within a host.
std::vector<std::string> fast_networks(const std::vector<std::string>& transports);

// The network of an NCCL plug-in (net_plugin/plugin.hpp).
struct PluginNet {
  const Net* net = nullptr;  // lives until the process ends
  std::string name;          // the plug-in's own name
  std::string text;          // the library, the version of its interface and its devices
};

// `name`: as in NCCL_NET_PLUGIN, see NetPlugin::load(). Throws if the plug-in cannot be loaded or used; the error names
// the library.
PluginNet net_plugin(const std::string& name);

struct NetChoice {
  const Net* net = nullptr;  // lives as long as the process
  std::string name;          // "tcp", "ucx" or "plugin:NAME"
  std::string why;           // the reason, on one line: for SLIP_DEBUG=net and `slip topo`
  bool automatic = true;     // false: SLIP_NET names the network
};

// The choice for a value of SLIP_NET. Throws if there is no such network, or if it cannot be used in this process.
NetChoice choose_net(const std::string& requested);
// Throws if the value of SLIP_NET names no network. Loads no library, unlike choose_net().
void require_known_net(const std::string& requested);
// The choice for this process's SLIP_NET. The first call makes it. An error is not kept: the next call tries again.
const NetChoice& net_choice();

// A rank's choice, as it sends it to the other ranks. Trivially copyable: ranks send it as bytes.
struct NetOffer {
  static constexpr std::size_t kMaxName = 255;
  char name[kMaxName + 1] = {};
  bool automatic = true;

  static NetOffer of(const NetChoice& choice);
  std::string_view name_text() const;
};

struct NetAgreement {
  bool falls_back = false;  // the ranks chose different networks automatically: all of them use TCP instead
  std::string why;          // the reason; empty unless falls_back
};

// `offers`: by rank. All ranks get the same result. If the networks differ, all ranks use TCP, provided that each
// choice is automatic or is TCP. Otherwise throws.
NetAgreement agree_on_net(std::span<const NetOffer> offers);

}  // namespace slip::transport
