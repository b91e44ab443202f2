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
SLIP_NCCL_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t) {
  return refuse("ncclCommWindowDeregister", comm);
}
SLIP_NCCL_API(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const ncclDevCommRequirements*, ncclDevComm*) {
  return refuse("ncclDevCommCreate", comm);
}
SLIP_NCCL_API(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const ncclDevComm*) {
  return refuse("ncclDevCommDestroy", comm);
}
SLIP_NCCL_API(ncclResult_t, ncclLsaBarrierCreateRequirement, ncclTeam, int, ncclLsaBarrierHandle*,
              ncclDevResourceRequirements*) {
  return refuse("ncclLsaBarrierCreateRequirement", nullptr);
}
SLIP_NCCL_API(ncclResult_t, ncclGinBarrierCreateRequirement, ncclComm_t comm, ncclTeam, int, ncclGinBarrierHandle*,
              ncclDevResourceRequirements*) {
  return refuse("ncclGinBarrierCreateRequirement", comm);
}
SLIP_NCCL_API(ncclResult_t, ncclLLA2ACreateRequirement, int, int, ncclLLA2AHandle*, ncclDevResourceRequirements*) {
  return refuse("ncclLLA2ACreateRequirement", nullptr);
}
SLIP_NCCL_API(int, ncclLLA2ACalcSlots, int, int) {
  static_cast<void>(refuse("ncclLLA2ACalcSlots", nullptr));
  return -1;
}
SLIP_NCCL_API(ncclTeam, ncclTeamWorld, ncclComm_t comm) {
  static_cast<void>(refuse("ncclTeamWorld", comm));
  return kNoTeam;
}
SLIP_NCCL_API(ncclTeam, ncclTeamLsa, ncclComm_t comm) {
  static_cast<void>(refuse("ncclTeamLsa", comm));
  return kNoTeam;
}
SLIP_NCCL_API(ncclTeam, ncclTeamRail, ncclComm_t comm) {
  static_cast<void>(refuse("ncclTeamRail", comm));
  return kNoTeam;
}
SLIP_NCCL_API(int, ncclTeamRankToWorld, ncclComm_t comm, ncclTeam, int) {
  static_cast<void>(refuse("ncclTeamRankToWorld", comm));
  return -1;
}
SLIP_NCCL_API(int, ncclTeamRankToLsa, ncclComm_t comm, ncclTeam, int) {
  static_cast<void>(refuse("ncclTeamRankToLsa", comm));
  return -1;
}
