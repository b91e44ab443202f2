// An op that fails: how an error that no call could throw reaches a stream.
#pragma once

#include "slip/device.hpp"
#include "slip/error.hpp"

namespace slip {

// Ops that the stream had before still run; then the stream fails with this error, and so do streams that wait for it.
// A capture is spoilt. Does nothing if the stream has failed or was destroyed: its calls throw that already.
void enqueue_failure(const StreamRef& stream, const Error& error);

}  // namespace slip
