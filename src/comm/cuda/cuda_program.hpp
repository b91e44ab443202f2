// The program of a call in the form that kernels read. The steps are those of DirectProgramBuilder, so GPUs use the
// same plans as ranks on the CPU. The kernel itself synchronises with the peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/api/call.hpp"
#include "comm/cuda/cuda_layout.hpp"

namespace slip::comm {

struct DeviceProgram {
  std::uint32_t steps = 0;
  std::vector<std::byte> bytes;  // the steps, then the locations
};

// The steps of the ranks from `first` to `last`, without `last`.
DeviceProgram write_device_program(const Call& call, int first, int last, int nranks);

// The number of blocks of the kernel: enough to fill the memory bandwidth, few for small calls. All ranks of a call get
// the same number if they pass the same arguments. `max`: the blocks that fit on the GPU.
int blocks_of_call(const Call& call, int nranks, MeetingMode mode, int max);

}  // namespace slip::comm
