// The functions of NCCL that this library does not offer: windows and the device API. Each prints a line and fails, so
// that no program assumes that it succeeded.
#include <string>

#include "base/terminal.hpp"
#include "nccl/api.hpp"

namespace slip::nccl {
namespace {

ncclResult_t refuse(const char* function, ncclComm_t comm) {
  const std::string text = "this library (Slipstream's libnccl.so.2) does not offer windows and the device API";
  base::log_line(fmt::format("{}: {}", function, text));
  return report(function, comm, {ncclInvalidUsage, text});
}

}  // namespace
}  // namespace slip::nccl

// The types of NCCL's nccl_device.h. Only pointers to them are passed, except a team.
struct ncclDevComm;
struct ncclDevCommRequirements;
struct ncclDevResourceRequirements;
struct ncclGinBarrierHandle;
struct ncclLLA2AHandle;
struct ncclLsaBarrierHandle;
struct ncclTeam {
  int ranks, rank, stride;
};
namespace {
constexpr ncclTeam kNoTeam{0, -1, 0};  // the result of the refused functions that return a team, not an ncclResult_t
}

using namespace slip::nccl;

SLIP_NCCL_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void*, size_t, ncclWindow_t* win, int) {
  if (win) *win = nullptr;
  return refuse("ncclCommWindowRegister", comm);
}

// Defines a function that is refused and returns `value`. `comm`: its communicator, or nullptr.
#define SLIP_NCCL_REFUSED(result, value, comm, name, ...) \
  SLIP_NCCL_API(result, name, __VA_ARGS__) {              \
    static_cast<void>(refuse(#name, comm));               \
    return value;                                         \
  }

SLIP_NCCL_REFUSED(ncclResult_t, ncclInvalidUsage, comm, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t)
SLIP_NCCL_REFUSED(ncclResult_t, ncclInvalidUsage, comm, ncclDevCommCreate, ncclComm_t comm,
                  const ncclDevCommRequirements*, ncclDevComm*)
SLIP_NCCL_REFUSED(ncclResult_t, ncclInvalidUsage, comm, ncclDevCommDestroy, ncclComm_t comm, const ncclDevComm*)
SLIP_NCCL_REFUSED(ncclResult_t, ncclInvalidUsage, nullptr, ncclLsaBarrierCreateRequirement, ncclTeam, int,
                  ncclLsaBarrierHandle*, ncclDevResourceRequirements*)
SLIP_NCCL_REFUSED(ncclResult_t, ncclInvalidUsage, comm, ncclGinBarrierCreateRequirement, ncclComm_t comm, ncclTeam, int,
                  ncclGinBarrierHandle*, ncclDevResourceRequirements*)
SLIP_NCCL_REFUSED(ncclResult_t, ncclInvalidUsage, nullptr, ncclLLA2ACreateRequirement, int, int, ncclLLA2AHandle*,
                  ncclDevResourceRequirements*)
SLIP_NCCL_REFUSED(int, -1, nullptr, ncclLLA2ACalcSlots, int, int)
SLIP_NCCL_REFUSED(ncclTeam, kNoTeam, comm, ncclTeamWorld, ncclComm_t comm)
SLIP_NCCL_REFUSED(ncclTeam, kNoTeam, comm, ncclTeamLsa, ncclComm_t comm)
SLIP_NCCL_REFUSED(ncclTeam, kNoTeam, comm, ncclTeamRail, ncclComm_t comm)
SLIP_NCCL_REFUSED(int, -1, comm, ncclTeamRankToWorld, ncclComm_t comm, ncclTeam, int)
SLIP_NCCL_REFUSED(int, -1, comm, ncclTeamRankToLsa, ncclComm_t comm, ncclTeam, int)
