// Chooses the engine that runs the calls of a communicator on GPUs: Slipstream's kernels, or NVIDIA's NCCL (SLIP_NCCL).
// Each rank describes its GPU and the library that it found. All ranks exchange these offers and make the same choice.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "slip/error.hpp"

namespace slip::comm {

enum class NcclRequest : std::int32_t { kNone, kAuto, kPath };
// By the value of SLIP_NCCL: "" and "off" are kNone.
NcclRequest nccl_request_of(const std::string& value);

// Trivially copyable: ranks send it to each other as bytes.
struct EngineOffer {
  char gpu[16] = {};          // its UUID
  std::uint64_t host = 0;     // the host as NCCL sees it: a hash of NCCL_HOSTID, or of the real host
  std::uint64_t process = 0;  // different in each process
  NcclRequest request = NcclRequest::kNone;
  std::int32_t version = 0;  // of the library
  std::int32_t deterministic = 0;
  std::int32_t polls = 0;  // 1: this rank can use NcclCallMode::kPolled only
  char problem[300] = {};  // why this rank cannot use the library; "": it can

  void set_problem(const std::string& text);
};

struct EngineChoice {
  bool uses_nccl = false;
  // True: all ranks use NcclCallMode::kPolled, because one of them must. The modes need different communicators, which
  // all ranks create together.
  bool polls = false;
  std::string reason;
  bool is_error = false;            // SLIP_NCCL names a library, and it cannot be used
  ErrorCode code = ErrorCode::kOk;  // of the error
};

// `offers`: by rank. A pure function, so all ranks choose the same.
EngineChoice choose_engine(std::span<const EngineOffer> offers);

}  // namespace slip::comm
