// What a Group keeps until it ends.
#pragma once

#include <span>

#include "comm/message_plan.hpp"
#include "slip/device.hpp"

namespace slip {

// A send or receive as the user asked for it.
struct Letter {
  bool out = true;
  int rank = 0;  // the other one
  Range range;
  StreamRef stream;
  Here here;
};

// Who can begin letters, together, as one op of a stream: a communicator.
class PostOffice {
 public:
  virtual void issue_letters(std::span<const Letter> letters, StreamRef stream) = 0;

 protected:
  ~PostOffice() = default;
};

// Now, or when the thread's group ends.
void take_letter(PostOffice& office, const Letter& letter);

}  // namespace slip
