// The Python module slipstream._distributed: makes process groups. slipstream/distributed.py registers it with torch.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "group.hpp"

namespace {

using slip::distributed::SlipGroup;
using slip::distributed::TorchGroup;

c10::intrusive_ptr<TorchGroup> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                      std::chrono::milliseconds timeout) {
  return c10::make_intrusive<SlipGroup>(store, rank, size, timeout);
}

}  // namespace

PYBIND11_MODULE(_distributed, module) {
  module.doc() = "Process groups of torch.distributed on Slipstream communicators.";
  module.attr("torch_version") = TORCH_VERSION;
  module.def("create", &create, pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"),
             pybind11::arg("timeout"), pybind11::call_guard<pybind11::gil_scoped_release>());
}
