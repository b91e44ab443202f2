// How our plug-in makes connections. NCCL gets pointers to the objects of the TCP transport: a NetListener, a
// NetConnection, a NetMemory and a NetRequest. NCCL ensures that only one thread at a time uses each of them.
#pragma once

#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "nccl_net/devices.hpp"
#include "transport/net/net.hpp"

namespace slip::nccl_net {

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
