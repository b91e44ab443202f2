// Payload: the real work of an op, which runs in addition to the virtual time that the op takes. It is a kernel's cpu
// function, a copy, a fill, a host function or an exchange. Other ops have no payload.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "slip/op.hpp"

namespace slip::sim {

struct Payload {
  OpKind kind = OpKind::kKernel;
  std::uint8_t value = 0;  // kFill
  const Kernel* kernel = nullptr;
  Here here = {};
  std::vector<Piece> reads = {}, writes = {};
  std::vector<Scalar> scalars = {};
  std::function<void()> host = {};
  // kExchange: Machine advances it in steps; perform() ignores it.
  runtime::Exchange* exchange = nullptr;
  Picos first_tried = -1;  // when the machine first tried to advance it; below 0: not yet
};

enum class Outcome : std::uint8_t { kDone, kFailed, kFault };

// Copies everything that the payload needs from `op`; moves the host function.
void fill_payload(Payload& payload, const Op& op);
// Runs the payload on this thread. Sets `what` if it threw.
Outcome perform(Payload& payload, std::string& what) noexcept;

}  // namespace slip::sim
