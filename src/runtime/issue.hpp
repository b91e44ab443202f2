// Records and waits between streams: so frequent, and so short, that setting up an Op for each, of which they use a few
// fields, would take most of their time.
#pragma once

#include "runtime/core.hpp"

namespace slip {

// As issue() with an Op of the kind. REQUIRES: the stream does not capture.
std::uint64_t issue_record(StreamState& stream, Here here);  // one without a time
struct EventWait {
  Point point;
  std::uint64_t point_stream = 0;  // see Op
  EventState* event = nullptr;
};
void issue_wait(StreamState& stream, const EventWait& wait, Here here);

}  // namespace slip
