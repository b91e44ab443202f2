#include "comm/link/net_link.hpp"

#include <fmt/format.h>

namespace slip {
namespace {

static_assert(
    2 * LinkEnd::kDepth <=
    ProxyConnection::kDepth);  // each message posts at most a signature and its bytes, so the line always has room

std::span<std::byte> bytes_of(Signature& signature) { return std::as_writable_bytes(std::span(&signature, 1)); }

void set_line_driven(ProxyConnection* line, bool driven) {
  if (!line) return;
  if (driven) line->begin_drive();
  else line->end_drive();
}

bool notify_by(ProxyConnection* line, Sleeper* sleeper) {
  if (line) line->set_sleeper(sleeper);
  return line != nullptr;
}

void post(ProxyConnection& line, std::span<std::byte> bytes,
          ProxyConnection::Next next = ProxyConnection::Next::kCompute) {
  static_cast<void>(line.post(bytes, next));
}

}  // namespace

void NetOutlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  if (!line_) line_ = std::make_unique<ProxyConnection>(Proxy::of_process(), connect_());
  line_->begin_drive();
  const std::uint64_t slot = begun_ % kDepth;
  if (signature) {
    signatures_[slot] = *signature;
    post(*line_, bytes_of(signatures_[slot]),
         bytes > 0 ? ProxyConnection::Next::kPost : ProxyConnection::Next::kCompute);
  }
  if (bytes > 0) post(*line_, {data, bytes});
  ends_[slot] = line_->posted();
  ++begun_;
}

bool NetOutlet::drive() {
  if (done_ == begun_ || !line_) return false;
  bool moved = line_->drive();
  for (; done_ < begun_ && ends_[done_ % kDepth] <= line_->done(); ++done_) moved = true;
  return moved;
}

void NetOutlet::set_driven(bool driven) { set_line_driven(line_.get(), driven); }
bool NetOutlet::notify(Sleeper* sleeper) { return notify_by(line_.get(), sleeper); }

void NetInlet::begin(std::byte* data, std::uint64_t bytes, const Signature* signature) {
  Message& message = messages_[begun_ % kDepth];
  message = {};
  message.data = data;
  message.bytes = bytes;
  message.signed_ = signature != nullptr;
  if (signature) message.expected = *signature;
  ++begun_;
  if (line_) line_->begin_drive();
}

// False: the signature has not arrived, so the bytes cannot be posted yet.
bool NetInlet::post_receive(Message& message) {
  if (message.signed_) {
    if (message.signature_end == 0) {
      post(*line_, bytes_of(message.received));
      message.signature_end = line_->posted();
    }
    if (line_->done() < message.signature_end) return false;
    if (line_->moved(message.signature_end - 1) != sizeof(Signature))
      throw Error(Code::kMismatch,
                  fmt::format("rank {} calls {}, rank {} has not come to it: all ranks of a communicator must make the "
                              "same calls in the same order",
                              rank_, message.expected.text(), from_),
                  {});
    require_same(rank_, message.expected, from_, message.received);
  }
  if (message.bytes > 0) post(*line_, {message.data, message.bytes});
  message.end = line_->posted();
  return true;
}

bool NetInlet::drive() {
  if (done_ == begun_) return false;
  if (!line_) {
    std::unique_ptr<NetReceiver> receiver = accept_();
    if (!receiver) return false;
    line_ = std::make_unique<ProxyConnection>(Proxy::of_process(), std::move(receiver));
    line_->begin_drive();
  }
  bool moved = line_->drive();
  while (posted_ < begun_ && post_receive(messages_[posted_ % kDepth])) ++posted_;
  for (; done_ < posted_; ++done_) {
    const Message& message = messages_[done_ % kDepth];
    if (line_->done() < message.end) break;
    if (message.bytes > 0 && line_->moved(message.end - 1) != message.bytes)
      throw Error(Code::kMismatch,
                  fmt::format("rank {} expected {} bytes from rank {} and got {}", rank_, message.bytes, from_,
                              line_->moved(message.end - 1)),
                  {});
    moved = true;
  }
  return moved;
}

void NetInlet::set_driven(bool driven) { set_line_driven(line_.get(), driven); }
bool NetInlet::notify(Sleeper* sleeper) { return notify_by(line_.get(), sleeper); }

}  // namespace slip
