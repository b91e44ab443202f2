#include "comm/link/net_link.hpp"

#include "base/fail.hpp"

namespace slip::comm {
namespace {

// Each message posts at most two operations, its signature and its bytes, so the ring of the connection is never full.
static_assert(2 * LinkEnd::kDepth <= transport::ProxyConnection::kDepth);

std::span<std::byte> bytes_of(Signature& signature) { return std::as_writable_bytes(std::span(&signature, 1)); }

void post(transport::ProxyConnection& connection, std::span<std::byte> bytes,
          transport::ProxyConnection::Next next = transport::ProxyConnection::Next::kCompute) {
  static_cast<void>(connection.post(bytes, next));
}

}  // namespace

void NetEnd::set_driven(bool driven) {
  if (!connection_) return;
  if (driven) connection_->begin_drive();
  else connection_->end_drive();
}

bool NetEnd::notify(base::Subscriber* subscriber) {
  if (connection_) connection_->set_subscriber(subscriber);
  return connection_ != nullptr;
}

void NetOutlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  if (!connection_) connection_ = connect_();
  connection_->begin_drive();
  const std::uint64_t slot = begun_ % kDepth;
  if (signature) {
    signatures_[slot] = *signature;
    post(*connection_, bytes_of(signatures_[slot]),
         bytes > 0 ? transport::ProxyConnection::Next::kPost : transport::ProxyConnection::Next::kCompute);
  }
  if (bytes > 0) post(*connection_, {data, bytes});
  ends_[slot] = connection_->posted();
  ++begun_;
}

bool NetOutlet::drive() {
  if (!connection_) return false;
  // Bytes of completed messages may still be under way, and the peer waits for them. So a cut network is an error even
  // if no message is pending here.
  if (done_ == begun_) {
    connection_->throw_if_failed();
    return false;
  }
  bool moved = connection_->drive();
  for (; done_ < begun_ && ends_[done_ % kDepth] <= connection_->done(); ++done_) moved = true;
  return moved;
}

void NetInlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  Message& message = messages_[begun_ % kDepth];
  message = {};
  message.data = data;
  message.bytes = bytes;
  message.is_signed = signature != nullptr;
  if (signature) message.expected = *signature;
  ++begun_;
  if (connection_) connection_->begin_drive();
}

// Returns false if the signature has not arrived, so that the receive of the bytes cannot be posted yet.
bool NetInlet::post_receive(Message& message) {
  if (message.is_signed) {
    if (message.signature_end == 0) {
      post(*connection_, bytes_of(message.received));
      message.signature_end = connection_->posted();
    }
    if (connection_->done() < message.signature_end) return false;
    if (connection_->moved(message.signature_end - 1) != sizeof(Signature))
      base::fail(
          ErrorCode::kMismatch, {},
          "rank {} calls {}, rank {} has not joined it: all ranks of a communicator must make the "
          "same calls in the same order (rank {} sent a message of {} bytes instead of the call's signature of {})",
          rank_, message.expected.text(), from_, from_, connection_->moved(message.signature_end - 1),
          sizeof(Signature));
    require_same(rank_, message.expected, from_, message.received);
  }
  if (message.bytes > 0) post(*connection_, {message.data, message.bytes});
  message.end = connection_->posted();
  return true;
}

bool NetInlet::drive() {
  if (done_ == begun_) return false;
  if (!connection_) {
    connection_ = accept_();
    if (!connection_) return false;
    connection_->begin_drive();
  }
  bool moved = connection_->drive();
  while (posted_ < begun_ && post_receive(messages_[posted_ % kDepth])) ++posted_;
  for (; done_ < posted_; ++done_) {
    const Message& message = messages_[done_ % kDepth];
    if (connection_->done() < message.end) break;
    if (message.bytes > 0 && connection_->moved(message.end - 1) != message.bytes)
      base::fail(ErrorCode::kMismatch, {}, "rank {} expected {} bytes from rank {} and got {}", rank_, message.bytes,
                 from_, connection_->moved(message.end - 1));
    moved = true;
  }
  return moved;
}

}  // namespace slip::comm
