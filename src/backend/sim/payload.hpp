// Payload: what an op really does besides taking virtual time. Only ops with a function and exchanges have one.
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
  // kExchange: goes on in steps, and is not performed. When it was first looked at; below 0: not yet.
  Exchange* exchange = nullptr;
  Picos came = -1;
};

enum class Outcome : std::uint8_t { kDone, kFailed, kFault };

// Takes over what `op` names.
void fill_payload(Payload& payload, const Op& op);
// Runs it on this thread; `what` is set when it threw.
Outcome perform(Payload& payload, std::string& what) noexcept;

}  // namespace slip::sim
