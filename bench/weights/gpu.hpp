// Weight streaming on a GPU: the shapes of a 7B decoder, 32 blocks of 405 MB, beside raw copies, resident execution,
// PyTorch with two hand-written slots, and accelerate.
#pragma once

#include <string>

#include "support/harness.hpp"

namespace slip::bench {

// Measures what plans are made from, and writes it to a file: in a process of its own, before the bars.
int profile_gpu(const std::string& costs_file);

// `costs_file` and `torch_file` may be empty or missing: what needs them is skipped.
void add_gpu_bars(Harness& harness, std::string costs_file, std::string torch_file);

}  // namespace slip::bench
