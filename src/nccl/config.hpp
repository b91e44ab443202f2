// ncclConfig_t, and the environment variables of NCCL, as options of a communicator.
#pragma once

#include "nccl/nccl.h"
#include "slip/communicator.hpp"

namespace slip::nccl {

struct CommConfig {
  bool blocking = true;
  CommunicatorOptions options = {};
};

// Reads the caller's config, which may be null or of an older version. Throws ApiError if it has an impossible value.
CommConfig read_config(const ncclConfig_t* config);
// The config of a new communicator that is made of an existing one: what the caller leaves undefined is inherited.
CommConfig read_config(const ncclConfig_t* config, const CommConfig& parent);

}  // namespace slip::nccl
