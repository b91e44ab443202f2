// How our plug-in makes connections. What NCCL gets are pointers to the objects of the TCP transport: a NetListener, a
// NetConnection, a NetMemory and a NetRequest. One thread at a time uses each of them, as NCCL promises.
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

// connect() without waiting. NCCL calls it with the same handle until it returns a connection.
class Dialers {
 public:
  // Null: not connected yet.
  std::unique_ptr<transport::NetSender> dial(void* handle, const NetDevice& device);

 private:
  struct Dialer;
  base::Mutex mutex_;
  std::vector<std::shared_ptr<Dialer>> all_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::nccl_net
