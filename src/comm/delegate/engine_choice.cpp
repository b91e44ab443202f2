#include "comm/delegate/engine_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/delegate/nccl_library.hpp"

namespace slip::comm {
namespace {

const char* request_text(NcclRequest request) {
  switch (request) {
    case NcclRequest::kNone: return "is not set";
    case NcclRequest::kAuto: return "is auto";
    case NcclRequest::kPath: return "names a library";
  }
  return "is unknown";
}

// The reason why NCCL cannot run the calls of these ranks; none: it can.
std::optional<std::string> find_obstacle(std::span<const EngineOffer> offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].problem[0] != '\0') return fmt::format("rank {}: {}", rank, offers[rank].problem);
  }
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].version != offers[0].version)
      return fmt::format("rank 0 has NCCL {} and rank {} has {}: all ranks need the same version",
                         nccl_version_text(offers[0].version), rank, nccl_version_text(offers[rank].version));
  }
  for (std::size_t a = 0; a < offers.size(); ++a) {
    for (std::size_t b = a + 1; b < offers.size(); ++b) {
      if (offers[a].host == offers[b].host && std::memcmp(offers[a].gpu, offers[b].gpu, sizeof(offers[a].gpu)) == 0)
        return fmt::format("ranks {} and {} are on one GPU, and NCCL refuses several ranks on one GPU", a, b);
    }
  }
  // One thread may issue the calls of both ranks. NCCL's first call of one rank waits for the other rank, whose call
  // the thread would make next: a deadlock.
  for (std::size_t a = 0; a < offers.size(); ++a) {
    for (std::size_t b = a + 1; b < offers.size(); ++b) {
      if (offers[a].process == offers[b].process)
        return fmt::format("ranks {} and {} are in one process, and calls of NCCL would wait for each other there", a,
                           b);
    }
  }
  if (offers[0].deterministic != 0)
    return "the communicator is deterministic, and the bits of NCCL's results depend on its algorithms";
  return std::nullopt;
}

}  // namespace

NcclRequest nccl_request_of(const std::string& value) {
  if (value.empty() || value == "off") return NcclRequest::kNone;
  return value == "auto" ? NcclRequest::kAuto : NcclRequest::kPath;
}

void EngineOffer::set_problem(const std::string& text) {
  std::memset(problem, 0, sizeof(problem));
  std::string_view(text).copy(problem, sizeof(problem) - 1);
}

EngineChoice choose_engine(std::span<const EngineOffer> offers) {
  const NcclRequest request = offers[0].request;
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].request != request)
      return {.reason = fmt::format("SLIP_NCCL {} on rank 0 and {} on rank {}: it must be the same on all ranks",
                                    request_text(request), request_text(offers[rank].request), rank),
              .is_error = true,
              .code = ErrorCode::kMismatch};
  }
  if (request == NcclRequest::kNone) return {.reason = "SLIP_NCCL is not set"};
  const std::optional<std::string> obstacle = find_obstacle(offers);
  if (!obstacle) {
    const bool polls = std::any_of(offers.begin(), offers.end(), [](const EngineOffer& one) { return one.polls != 0; });
    return {.uses_nccl = true, .polls = polls, .reason = "every rank has a GPU of its own"};
  }
  if (request == NcclRequest::kAuto) return {.reason = *obstacle};
  return {.reason = fmt::format("SLIP_NCCL: {}; unset SLIP_NCCL to use Slipstream's own kernels", *obstacle),
          .is_error = true,
          .code = ErrorCode::kUnsupported};
}

}  // namespace slip::comm
