// NetOutlet and NetInlet: the two ends of a link over the network. Links makes them. Each has a connection
// (ProxyConnection) of its own, opened at the first message; the proxy thread drives it while no caller does.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "comm/link/link.hpp"
#include "transport/net/proxy.hpp"

namespace slip::comm {

// The connection of either end.
class NetEnd : public LinkEnd {
 public:
  void set_driven(bool driven) override;
  void close() noexcept override { connection_ = nullptr; }
  std::int64_t add_poll_fds(std::vector<pollfd>& all) override { return connection_ ? connection_->watch(all) : 0; }
  bool notify(base::Subscriber* subscriber) override;
  bool reports_departure() const override { return connection_ != nullptr; }

 protected:
  std::unique_ptr<transport::ProxyConnection> connection_;  // null: not opened yet, or closed
};

class NetOutlet final : public NetEnd {
 public:
  using Connect = std::function<std::unique_ptr<transport::ProxyConnection>()>;
  explicit NetOutlet(Connect connect) : connect_(std::move(connect)) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;

 private:
  const Connect connect_;
  std::array<Signature, kDepth> signatures_;
  std::array<std::uint64_t, kDepth> ends_{};  // by message: it is done when ProxyConnection::done() reaches this count
};

class NetInlet final : public NetEnd {
 public:
  // `accept` returns null while the other rank has not connected.
  using Accept = std::function<std::unique_ptr<transport::ProxyConnection>()>;
  NetInlet(Accept accept, int rank, int from) : accept_(std::move(accept)), rank_(rank), from_(from) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;

 private:
  struct Message {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    Signature expected, received;
    bool is_signed = false;
    // ProxyConnection::done() at which the signature and the whole message have arrived; 0: not posted yet.
    std::uint64_t signature_end = 0, end = 0;
  };
  bool post_receive(Message& message);

  const Accept accept_;
  const int rank_, from_;
  std::array<Message, kDepth> messages_;
  std::uint64_t posted_ = 0;  // messages whose receive is posted to the connection
};

}  // namespace slip::comm
