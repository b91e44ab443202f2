// Links over a network: each end is a line of its own, made when it is first used and kept moving by the proxy while
// nobody drives it.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "comm/link/link.hpp"
#include "transport/net/proxy.hpp"

namespace slip {

class NetOutlet final : public LinkEnd {
 public:
  explicit NetOutlet(std::function<std::unique_ptr<NetSender>()> connect) : connect_(std::move(connect)) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;
  void attend(bool attended) override;
  void close() noexcept override { line_ = nullptr; }
  bool watch(std::vector<pollfd>& all) override { return line_ && line_->watch(all); }
  bool tell(Sleeper* sleeper) override;
  bool says_when_over() const override { return line_ != nullptr; }

 private:
  const std::function<std::unique_ptr<NetSender>()> connect_;
  std::unique_ptr<ProxyConnection> line_;
  std::array<Signature, kDepth> signatures_;
  std::array<std::uint64_t, kDepth> ends_{};  // the count of the line at which a message is done
};

class NetInlet final : public LinkEnd {
 public:
  // `accept`: null while the other rank has not connected.
  NetInlet(std::function<std::unique_ptr<NetReceiver>()> accept, int rank, int from)
      : accept_(std::move(accept)), rank_(rank), from_(from) {}
  void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) override;
  bool drive() override;
  void attend(bool attended) override;
  void close() noexcept override { line_ = nullptr; }
  bool watch(std::vector<pollfd>& all) override { return line_ && line_->watch(all); }
  bool tell(Sleeper* sleeper) override;
  bool says_when_over() const override { return line_ != nullptr; }

 private:
  struct Message {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    Signature expected, said;
    bool signed_ = false;
    std::uint64_t signature_end = 0, end = 0;  // counts of the line at which they are there; 0: not asked for yet
  };
  bool ask(Message& message);

  const std::function<std::unique_ptr<NetReceiver>()> accept_;
  const int rank_, from_;
  std::unique_ptr<ProxyConnection> line_;
  std::array<Message, kDepth> messages_;
  std::uint64_t asked_ = 0;  // messages whose bytes the line was asked for
};

}  // namespace slip
