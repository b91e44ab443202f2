// The backends of this build: the prefix of their device names, and the function that opens their devices. Declared in
// runtime/backend.hpp.
#include <array>

#include "backend/cpu/cpu_backend.hpp"
#if SLIP_HAS_CUDA
#include "backend/cuda/cuda_backend.hpp"
#endif
#include "backend/sim/description.hpp"

namespace slip::runtime {

std::span<const BackendEntry> backends() {
  static constexpr std::array kTable = {
    BackendEntry{"cpu", backend::open_cpu},
    BackendEntry{"sim", sim::open_sim},
#if SLIP_HAS_CUDA
    BackendEntry{"cuda", backend::open_cuda},
#endif
  };
  return kTable;
}

}  // namespace slip::runtime
