// SetupCall: which call of a communicator an exchange between its ranks belongs to, outside of collectives, and until
// when that call may take. Each piece of a gathering carries the kind of the call, so that ranks that make different
// calls find out instead of waiting for each other.
#pragma once

#include <cstdint>

namespace slip {

enum class SetupKind : std::uint16_t { kOther, kInit, kAllocate, kSplit, kFinalize };

inline const char* setup_name(SetupKind kind) {
  switch (kind) {
    case SetupKind::kInit: return "init";
    case SetupKind::kAllocate: return "allocate";
    case SetupKind::kSplit: return "split";
    case SetupKind::kFinalize: return "finalize";
    case SetupKind::kOther: break;
  }
  return "another exchange";
}

struct SetupCall {
  SetupKind kind = SetupKind::kOther;
  std::int64_t deadline_ns = 0;  // of now_ns(), for all exchanges of the call together; 0: each has the usual timeout
};

}  // namespace slip
