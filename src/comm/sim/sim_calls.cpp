// Communicator::State, as far as its ranks are on sim devices.
#include <fmt/format.h>

#include "comm/api/communicator_state.hpp"
#include "runtime/core.hpp"

namespace slip {

SimRun& Communicator::State::in_virtual_time(SharedRun& run) {
  std::unique_ptr<SimRun>& found = sim_runs[&run];
  if (!found) found = std::make_unique<SimRun>(*sim, *calls, run);
  return *found;
}

void Communicator::State::require_device(const DeviceCore& core, std::string_view what, Here here) const {
  require_rank_device(core.info, what, here);
  if (core.info.world == world) return;
  throw Error(Code::kUnsupported,
              fmt::format("{} on device '{}': the communicator's ranks are on '{}', with another clock", what,
                          core.info.name, device.info().name),
              here);
}

}  // namespace slip
