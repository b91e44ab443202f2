// Texts of all ranks, for comparing what they ask for. Waits for all of them.
#pragma once

#include <string>
#include <vector>

#include "slip/communicator.hpp"

namespace slip {

// By rank. All ranks call it; `stream` is of the communicator's device.
std::vector<std::string> gather_texts(Communicator& comm, const Device& device, StreamRef stream,
                                      const std::string& own, Here here);

}  // namespace slip
