#include "backend/sim/payload.hpp"

#include <cstring>

#include "runtime/core.hpp"

namespace slip::sim {
namespace {

void take_pieces(std::vector<Piece>& pieces, const Ranges& ranges) {
  pieces.clear();  // keeps the capacity: payloads are reused
  for (const Range& range : ranges) pieces.push_back({runtime::address(range), range.bytes});
}

void run(Payload& payload) {
  const runtime::InsideOp inside;
  switch (payload.kind) {
    case OpKind::kKernel: payload.kernel->cpu(Args(payload.reads, payload.writes, payload.scalars)); break;
    case OpKind::kCopy: std::memcpy(payload.writes[0].data, payload.reads[0].data, payload.writes[0].bytes); break;
    case OpKind::kFill: std::memset(payload.writes[0].data, payload.value, payload.writes[0].bytes); break;
    case OpKind::kHost: payload.host(); break;
    default: break;
  }
}

}  // namespace

void fill_payload(Payload& payload, const Op& op) {
  payload.kind = op.kind;
  payload.value = static_cast<std::uint8_t>(op.value);
  payload.kernel = op.kernel;
  payload.here = op.here;
  payload.exchange = op.exchange;
  payload.first_tried = -1;
  take_pieces(payload.reads, op.reads);
  take_pieces(payload.writes, op.writes);
  payload.scalars.assign(op.scalars.begin(), op.scalars.end());
  if (op.kind == OpKind::kHost) payload.host = std::move(*op.host);
}

Outcome perform(Payload& payload, std::string& what) noexcept {
  try {
    run(payload);
    return Outcome::kDone;
  } catch (const DeviceFault& fault) {
    what = fault.what();
    return Outcome::kFault;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception that is not a std::exception";
  }
  return Outcome::kFailed;
}

}  // namespace slip::sim
