// The network devices of our plug-in: one for each network interface that the rules of SLIP_SOCKET_IFNAME accept.
#pragma once

#include <string>
#include <vector>

#include "transport/socket/address.hpp"

namespace slip::nccl_net {

struct NetDevice {
  std::string name;      // of the interface
  std::string host;      // the address at which a listener of this device listens, without a port
  std::string pci_path;  // in /sys; empty: a virtual interface
  int speed_mbps = 0;
};

// Throws if the rules accept no interface.
std::vector<NetDevice> find_devices();

}  // namespace slip::nccl_net
