// How the plug-in makes connections. NCCL gets pointers to the objects of the TCP transport: a NetListener, a
// NetConnection, a NetMemory and a NetRequest. NCCL ensures that only one thread at a time uses each of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "transport/net/net.hpp"
#include "transport/socket/address.hpp"

namespace slip::nccl_net {

// A network device of the plug-in. There is one for each network interface that the rules of SLIP_SOCKET_IFNAME accept.
struct NetDevice {
  std::string name;      // of the interface
  std::string host;      // the address at which a listener of this device listens, without a port
  std::string pci_path;  // in /sys; empty: a virtual interface
  int speed_mbps = 0;
};

// Throws if the rules accept no interface.
std::vector<NetDevice> find_devices();

// The options of all connections. The key is derived from SLIP_SECRET or SLIP_SECRET_FILE, if one of them is set.
// Otherwise all processes use the same key: then only the random salt in the listener's handle keeps processes of other
// jobs from connecting.
transport::NetOptions connection_options(const NetDevice& device);

// The attempts to connect. The plug-in's connect() must not wait: NCCL calls it again, with the same handle, until it
// returns a connection. So an attempt lasts for several calls.
class Dialers {
 public:
  // Continues the attempt for the handle, or begins one. Null: not connected yet. Throws if the attempt failed.
  std::unique_ptr<transport::NetSender> dial(void* handle, const NetDevice& device);

 private:
  struct Dialer;
  base::Mutex mutex_;
  std::vector<std::shared_ptr<Dialer>> all_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::nccl_net
