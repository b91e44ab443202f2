#include "transport/net/net.hpp"

#include <fmt/format.h>

#include <utility>

namespace slip::transport {

std::string NetPeer::text() const { return fmt::format("rank {} at {}", rank, address); }

void NetConnection::require_no_error() const {
  if (error_) throw Error(*error_);
}

void NetConnection::fail(Error error) {
  if (!error_) error_.emplace(std::move(error));
  throw Error(*error_);
}

NetRequest* NetConnection::take_request(std::span<std::byte> bytes) {
  NetRequest& next = request(begun_);
  if (!next.done) return nullptr;
  next = {bytes, false, 0};
  ++begun_;
  return &next;
}

}  // namespace slip::transport
