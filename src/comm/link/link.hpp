// LinkEnd: this rank's end of a one-way channel of messages to or from another rank. Messages arrive in the order in
// which they were sent; the programs of the two ranks say which message is which. Nothing here waits: begin() starts a
// message, drive() moves it, done() counts it.
//
// The first message of a call carries the call's signature. The receiver checks it before it takes a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/call.hpp"
#include "slip/error.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

class LinkEnd {
 public:
  static constexpr std::uint64_t kDepth = 16;  // messages that may be under way

  virtual ~LinkEnd() = default;
  LinkEnd() = default;
  LinkEnd(const LinkEnd&) = delete;
  LinkEnd& operator=(const LinkEnd&) = delete;

  bool full() const { return begun_ - done_ >= kDepth; }
  std::uint64_t begun() const { return begun_; }
  std::uint64_t done() const { return done_; }

  // REQUIRES: not full(). The caller leaves the bytes alone until the message is done. `signature`: null unless the
  // message is the first of a call.
  virtual void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) = 0;
  // Moves as many bytes as possible without waiting. False: none. Throws if the link failed or a signature does not
  // match.
  virtual bool drive() = 0;
  // True: the caller drives the link in a loop. False: no caller will for a while, though messages are under way; a
  // network link is then driven by the proxy.
  virtual void set_driven(bool driven) = 0;
  // After a call that failed: once this returns, no thread or process touches the bytes of its messages. The caller
  // begins and drives nothing afterwards.
  virtual void close() noexcept = 0;
  // Adds the file descriptors that become ready when drive() may move bytes. False: the link has none.
  virtual bool add_poll_fds(std::vector<pollfd>&) { return false; }
  // Wakes the subscriber when drive() may move bytes again; null: wakes none. False: the link cannot wake a thread.
  virtual bool notify(Subscriber*) { return false; }
  // Whether drive() itself throws when the other rank has left, after it has delivered everything sent before.
  virtual bool reports_departure() const { return false; }

 protected:
  std::uint64_t begun_ = 0, done_ = 0;
};

}  // namespace slip
