// ExchangeSource: an exchange that was captured. Each launch of its plan is another exchange with the others, who must
// match it as they would a call.
#pragma once

#include <cstdint>

#include "slip/op.hpp"

namespace slip {

struct DeviceCore;

class ExchangeSource {
 public:
  virtual ~ExchangeSource() = default;
  // Throws what keeps it from being launched on this device, with these ranges. Before anything of the launch is
  // issued.
  virtual void require(const DeviceCore& core, Ranges reads, Ranges writes, Here here) const = 0;
  // Enqueues the op with an exchange of its own, and returns its position.
  virtual std::uint64_t enqueue(StreamState& stream, const Op& op) const = 0;
  // Exchanges of one line run one after the other, in the order of their issue, in whatever streams.
  virtual const void* line() const = 0;
};

}  // namespace slip
