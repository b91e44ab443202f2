// The backends of this build, one row each.
#include <array>

#include "backend/cpu/cpu.hpp"
#include "backend/sim/sim.hpp"

namespace slip {

std::span<const BackendEntry> backends() {
  static constexpr std::array kTable = {
      BackendEntry{"cpu", open_cpu},
      BackendEntry{"sim", open_sim},
  };
  return kTable;
}

}  // namespace slip
