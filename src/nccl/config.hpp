// ncclConfig_t, and the environment variables of NCCL, as options of a communicator.
#pragma once

#include <chrono>

#include "nccl/nccl.h"
#include "slip/communicator.hpp"

namespace slip::nccl {

struct CommConfig {
  bool blocking = true;
  CommunicatorOptions options = {};
};

// Reads the caller's config, which may be null or of an older version. Throws ApiError if it has an impossible value.
CommConfig read_config(const ncclConfig_t* config);
// The config of a new communicator that is made from an existing one. It inherits the fields that the caller leaves
// undefined, but `blocking` only if there is no config at all.
CommConfig read_config(const ncclConfig_t* config, const CommConfig& parent);
std::chrono::milliseconds init_timeout();  // SLIP_NCCL_INIT_TIMEOUT

}  // namespace slip::nccl
