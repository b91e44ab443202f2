// The objects behind the pointers that NCCL gets from our plug-in: a listener, the two ends of a connection, and
// requests. One thread at a time uses each of them, as NCCL promises.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "nccl_net/devices.hpp"
#include "transport/net/net.hpp"
#include "transport/net_plugin/nccl_net.h"

namespace slip::nccl_net {

// The options of all connections. The key is derived from SLIP_SECRET or SLIP_SECRET_FILE, if one of them is set.
// Otherwise all processes use the same key: then only the random salt in the listener's handle keeps processes of other
// jobs from connecting.
transport::NetOptions connection_options(const NetDevice& device);

class Comm;

struct Request {
  Comm* comm = nullptr;
  transport::NetRequest* request = nullptr;
};

// One end of a connection, with the requests that NCCL has started on it.
class Comm : base::NoCopy {
 public:
  explicit Comm(std::unique_ptr<transport::NetConnection> connection);  // a NetSender or a NetReceiver
  transport::NetSender& sender() { return static_cast<transport::NetSender&>(*connection_); }
  transport::NetReceiver& receiver() { return static_cast<transport::NetReceiver&>(*connection_); }
  transport::NetConnection& connection() { return *connection_; }

  Request* wrap(transport::NetRequest* request);  // null gives null
  // True: the request is done and must not be used any more. `bytes`: null, or gets the length of each part.
  bool test(Request& request, int* bytes);

 private:
  const std::unique_ptr<transport::NetConnection> connection_;
  std::array<Request, transport::kNetMaxRequests> requests_;
  std::vector<Request*> free_;  // never empty when the connection has a free request: both have the same number
};

// connect() without waiting. NCCL calls it with the same handle until it returns a connection.
class Dialers {
 public:
  // Null: not connected yet.
  std::unique_ptr<Comm> dial(void* handle, const NetDevice& device);

 private:
  struct Dialer;
  base::Mutex mutex_;
  std::vector<std::shared_ptr<Dialer>> all_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::nccl_net
