// What a Group keeps until it ends.
#pragma once

#include <memory>
#include <span>

#include "comm/plan/message_program.hpp"
#include "slip/device.hpp"

namespace slip {

// A send or receive as the user asked for it.
struct PendingSendRecv {
  bool out = true;
  int rank = 0;  // the other one
  Range range;
  StreamRef stream;
  Here here;
};

// Who can begin letters, together, as one op of a stream: a communicator.
class SendRecvIssuer {
 public:
  virtual void issue_messages(std::span<const PendingSendRecv> letters, StreamRef stream) = 0;
  // Throws what issue_messages() would refuse before it enqueues anything.
  virtual void check_messages(std::span<const PendingSendRecv> letters, StreamRef stream) = 0;
  // Letters of a group could not be issued: the communicator has failed, on all ranks.
  virtual void fail(Code code, const std::string& text) noexcept = 0;
  // For a group, which may outlive the communicator.
  virtual std::weak_ptr<SendRecvIssuer> weak() = 0;

 protected:
  ~SendRecvIssuer() = default;
};

// Now, or when the thread's group ends.
void submit_or_keep(SendRecvIssuer& office, const PendingSendRecv& letter);

}  // namespace slip
