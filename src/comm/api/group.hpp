// The sends and receives that a Group keeps until it ends, and the interface through which the Group issues them.
// Communicator::State implements the interface, so that groups do not depend on communicators.
#pragma once

#include <memory>
#include <span>

#include "comm/plan/message_program.hpp"
#include "slip/device.hpp"

namespace slip::comm {

// The error of a group that was destroyed before it ended: the other ranks may have made the calls that this rank has
// not.
inline constexpr ErrorCode kUnendedCode = ErrorCode::kMismatch;

// A send or receive as the user called it.
struct PendingSendRecv {
  bool out = true;
  int rank = 0;  // the other rank
  Range range;
  StreamRef stream;
  Here here;
};

// The functions of a communicator that groups use.
class SendRecvIssuer {
 public:
  // Enqueues the messages together, as one op of the stream.
  virtual void issue_messages(std::span<const PendingSendRecv> messages, StreamRef stream) = 0;
  // Throws if issue_messages() would refuse a message. Enqueues nothing.
  virtual void check_messages(std::span<const PendingSendRecv> messages, StreamRef stream) = 0;
  // Makes the communicator fail on all ranks: a group with messages of it was destroyed before it ended. `text` names
  // the group.
  virtual void fail_group(const std::string& text) noexcept = 0;
  // A group may outlive the communicator.
  virtual std::weak_ptr<SendRecvIssuer> weak() = 0;

 protected:
  ~SendRecvIssuer() = default;
};

// Issues the message now, or keeps it until the thread's outermost group ends.
void submit_or_keep(SendRecvIssuer& issuer, const PendingSendRecv& message);

}  // namespace slip::comm
