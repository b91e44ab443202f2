#include "transport/net/net.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/wait.hpp"

namespace slip::transport {
std::string NetPeer::text() const {
  return rank < 0 ? fmt::format("the peer at {}", address) : fmt::format("rank {} at {}", rank, address);
}

std::string NetRequest::text() const {
  if (kind == Kind::kFlush) return "a flush";
  if (kind == Kind::kSend) return fmt::format("a send of {} bytes with tag {}", parts[0].bytes, parts[0].tag);
  std::string text = "a receive of";
  for (std::size_t i = 0; i < count; ++i)
    text += fmt::format("{} at most {} bytes with tag {}", i == 0 ? "" : ",", parts[i].bytes, parts[i].tag);
  return text;
}

NetConnection::NetConnection() {
  for (std::size_t index = requests_.size(); index-- > 0;) {
    NetRequest& request = requests_[index];
    request.index = static_cast<std::uint32_t>(index);
    request.connection = this;
    request.next_free = std::exchange(free_, &request);
  }
}

std::unique_ptr<NetMemory> NetConnection::register_memory(std::span<std::byte> bytes) {
  return std::make_unique<NetMemory>(bytes);
}

std::unique_ptr<NetMemory> NetConnection::register_gpu_memory(std::span<std::byte> bytes, int, std::uint64_t) {
  base::fail(ErrorCode::kUnsupported, {},
             "{}: this network takes no GPU memory: copy the {} bytes to host memory first", peer_.text(),
             bytes.size());
}

void NetConnection::wait(NetRequest* request, const Deadline& deadline, std::span<std::size_t> moved) {
  base::IdleWait idle(base::kNetWait);
  for (;;) {
    const bool moved_some = !request->done && progress();
    if (request->done && test(request, moved)) return;
    if (deadline.abort && deadline.abort->is_set())
      fail(ErrorCode::kAborted, "{}: {} was aborted", peer_.text(), request->text());
    const base::IdleWait::Next next = idle.next(moved_some);
    if (next == base::IdleWait::Next::kSpin) continue;
    if (deadline.at_ns != 0 && base::now_ns() >= deadline.at_ns)
      fail(ErrorCode::kTimeout,
           "{}: {} was not done before its deadline: the peer is stopped or cut off, or has not made "
           "the matching call",
           peer_.text(), request->text());
    if (next == base::IdleWait::Next::kYield) {
      base::yield_thread();
    } else {
      std::vector<pollfd> watched;
      const std::int64_t limit_ns = watch(watched);
      if (limit_ns > 0) wait_for_any(watched, deadline.within(limit_ns));
    }
  }
}

void NetConnection::throw_error() const { throw Error(*error_); }

void NetConnection::fail(Error error) {
  if (!error_) error_ = std::make_unique<const Error>(std::move(error));
  throw Error(*error_);
}

void NetConnection::refuse(const NetPart& part) const {
  const std::span<std::byte> room = part.memory ? part.memory->bytes() : std::span<std::byte>();
  base::fail(ErrorCode::kInvalidValue, {},
             "{}: {} bytes at {} with tag {} are not within registered memory ({} bytes at {}): "
             "call register_memory first, and pass the NetMemory that it returns with each part",
             peer_.text(), part.bytes, fmt::ptr(part.data), part.tag, room.size(), fmt::ptr(room.data()));
}

NetRequest* NetReceiver::flush(std::span<const NetPart> parts) {
  require_no_error();
  for (const NetPart& part : parts) check_part(part);
  NetRequest* const request = take_request(NetRequest::Kind::kFlush);
  if (request) request->done = true;
  return request;
}

void NetReceiver::refuse_count(std::size_t parts) {
  base::fail(ErrorCode::kInvalidValue, {}, "a receive of {} parts: 1 to {} are possible", parts, kNetMaxParts);
}

}  // namespace slip::transport
