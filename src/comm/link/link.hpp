// Links: one way for messages from this rank to another, and one back. Messages come in the order in which they were
// sent; which is which follows from the programs of the two ranks. Nothing here waits: messages are begun, move while
// somebody drives them, and are counted when they are done.
//
// The first message of a call carries the call's signature. Who receives it checks it before a byte is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/call.hpp"
#include "slip/error.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

// What one side does with its messages, sends or receives.
class LinkEnd {
 public:
  static constexpr std::uint64_t kDepth = 16;  // messages that may be begun and not done

  virtual ~LinkEnd() = default;
  LinkEnd() = default;
  LinkEnd(const LinkEnd&) = delete;
  LinkEnd& operator=(const LinkEnd&) = delete;

  bool full() const { return begun_ - done_ >= kDepth; }
  std::uint64_t begun() const { return begun_; }
  std::uint64_t done() const { return done_; }

  // Not while full. The bytes stay as they are until it is done. `signature`: null unless it is the call's first.
  virtual void begin(std::byte* data, std::uint64_t bytes, const Signature* signature) = 0;
  // Moves what goes now. False: nothing. Throws what is wrong with the link, and what does not match.
  virtual bool drive() = 0;
  // Whether the caller will drive it again and again, or nobody for a while, though messages are under way.
  virtual void attend(bool attended) = 0;
  // After a call that failed: when this returns, nobody touches the bytes of its messages any more. Nothing is begun or
  // driven afterwards.
  virtual void close() noexcept = 0;
  // What can make drive() move something, for who wants to sleep meanwhile. False: nothing tells.
  virtual bool watch(std::vector<pollfd>&) { return false; }
  // Who is told when drive() may move something that others have left; null: nobody. False: nothing tells.
  virtual bool tell(Sleeper*) { return false; }
  // Whether drive() itself finds that the other end has left, behind all that it sent.
  virtual bool says_when_over() const { return false; }

 protected:
  std::uint64_t begun_ = 0, done_ = 0;
};

}  // namespace slip
