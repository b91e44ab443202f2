// The parts of PyTorch's C++ interface that differ between versions, under one name each.
//
// Up to 1.13 a backend is a c10d::ProcessGroup; since 2.0 it is a c10d::Backend, and torch's own ProcessGroup calls it.
#pragma once

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

namespace slip::distributed {

#if TORCH_VERSION_MAJOR >= 2
using TorchGroup = c10d::Backend;
#else
using TorchGroup = c10d::ProcessGroup;
#endif

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Milliseconds = std::chrono::milliseconds;

}  // namespace slip::distributed
