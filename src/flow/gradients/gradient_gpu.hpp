// Functions that Gradients needs only on a GPU.
//
// If the ranks on a GPU are threads of one process, the kernel of a call waits there for the kernels of the other
// ranks. Some calls of the driver wait until the GPU is idle: opening a stream, loading a kernel, allocating and
// freeing memory. If one rank makes such a call while the kernel of another rank waits for it, both wait for ever. So
// Gradients makes these calls between two meetings of the ranks' threads, and no call of the communicator runs
// meanwhile.
#pragma once

#include <vector>

#include "slip/communicator.hpp"

namespace slip::flow {

bool on_gpu(const Device& device);

// Returns when all ranks have called it. Only on GPUs: on other devices it does nothing.
void meet_on_gpu(Communicator& comm, const Device& device, Here here);

// Memory of objects that were destroyed on a GPU with several ranks in this process. The rank that frees cannot know
// which calls the other ranks have made meanwhile, so the memory is kept. Any thread may call these.
void retire(std::vector<Buffer> memory);
// Frees what was retired. REQUIRES: no kernel waits for this rank.
void free_retired();

}  // namespace slip::flow
