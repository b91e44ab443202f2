// Chooses the network for messages between hosts: TCP, UCX or a plug-in. SLIP_NET names it; without SLIP_NET it is
// chosen automatically. Each process makes one choice. The ranks of a communicator compare their choices with
// agree_on_net().
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "transport/net/net.hpp"

namespace slip::transport {

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
