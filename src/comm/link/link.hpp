// LinkEnd: this rank's end of a one-way link for messages to or from another rank. Links owns it; ProgramRunner uses
// it. Messages arrive in the order in which they were sent. They carry no tags: the programs of both ranks name them in
// the same order. No function waits: begin() starts a message, drive() moves its bytes, done() counts completed
// messages.
//
// The first message of a call carries the call's signature. The receiver checks it before it accepts any byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/call.hpp"
#include "transport/socket/socket.hpp"

namespace slip::comm {

class LinkEnd : base::NoCopy {
 public:
  static constexpr std::uint64_t kDepth = 16;  // the maximum number of messages under way

  virtual ~LinkEnd() = default;

  bool full() const { return begun_ - done_ >= kDepth; }
  std::uint64_t begun() const { return begun_; }
  std::uint64_t done() const { return done_; }

  // REQUIRES: not full(). The caller does not access the bytes until the message is done. `signature`: null unless the
  // message is the first of a call.
  virtual void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) = 0;
  // Moves as many bytes as possible without waiting. Returns false if nothing moved. Throws if the link failed or a
  // signature does not match.
  virtual bool drive() = 0;
  // True: the caller drives the link in a loop. False: the caller does not drive it for a while, although messages are
  // under way. Then the proxy drives a network link.
  virtual void set_driven(bool) {}
  // After a failed call: once this returns, no thread or process accesses the bytes of its messages. The caller must
  // not call begin() or drive() afterwards. The default is for links whose bytes only drive() accesses.
  virtual void close() noexcept {}
  // Adds the file descriptors that become ready when drive() may move bytes. Returns how many nanoseconds a thread may
  // sleep in poll before it calls drive() again. 0: it must not sleep, because the link has no descriptors.
  virtual std::int64_t add_poll_fds(std::vector<pollfd>&) { return 0; }
  // Wakes the subscriber when drive() may move bytes again; null: wakes none. False: the link cannot wake a thread.
  virtual bool notify(base::Subscriber*) { return false; }
  // Whether drive() throws when the other rank has left. It first delivers all messages that the rank sent before.
  virtual bool reports_departure() const { return false; }

 protected:
  std::uint64_t begun_ = 0, done_ = 0;
};

}  // namespace slip::comm
