#include "base/fail.hpp"
#include "transport/net/tcp.hpp"
#include "transport/net/tcp_greeting.hpp"

namespace slip::transport {
namespace {

constexpr const char kMark[] = "tcp ";  // begins the handle of a TCP listener, see TcpHandle
void require_valid(const NetOptions& options) {
  if (options.sockets >= 1 && options.sockets <= kNetMaxSockets && options.stripe_bytes >= 1 &&
      options.stripe_bytes <= kMaxStripeBytes)
    return;
  base::fail(ErrorCode::kInvalidValue, {},
             "a connection of {} sockets with stripes of {} bytes: 1 to {} sockets and stripes of 1 to {} bytes are "
             "possible",
             options.sockets, options.stripe_bytes, kNetMaxSockets, kMaxStripeBytes);
}

class TcpListener final : public GreetingListener {
 public:
  explicit TcpListener(const NetOptions& options) : GreetingListener(options, kMark) {
    rails_ = listen_at(options.rails);
  }

 private:
  std::unique_ptr<NetReceiver> make_receiver(Arrived arrived) override {
    return make_tcp_receiver(std::move(arrived.peer), std::move(arrived.sockets), arrived.said.stripe_bytes);
  }
};

class TcpNet final : public Net {
 public:
  std::unique_ptr<NetListener> listen(const NetOptions& options) const override {
    return std::make_unique<TcpListener>(options);
  }

  std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                     const Deadline& deadline) const override {
    require_valid(options);
    return make_tcp_sender(connect_and_greet(handle, kMark, options, deadline), options);
  }
};

}  // namespace

GreetingDialer dial_tcp(const NetHandle& handle, const NetOptions& options) {
  require_valid(options);
  return {handle, kMark, options};
}

const Net& net_tcp() {
  static const TcpNet kNet;
  return kNet;
}

}  // namespace slip::transport
