// The extension module slipstream._core. The package adds types and Python-only parts.
#include "objects.hpp"

namespace slip::python {
namespace {

// slipstream._errors.make(code, name of the code, text, file, line) returns the exception to raise.
void translate(const Error& error) {
  const py::object make = py::module_::import("slipstream._errors").attr("make");
  const py::object made = make(code_name(error.code()), error.what(), error.here().file, error.here().line);
  PyErr_SetObject(py::type::handle_of(made).ptr(), made.ptr());
}

}  // namespace
}  // namespace slip::python

PYBIND11_MODULE(_core, module) {
  using namespace slip::python;  // NOLINT(google-build-using-namespace): the body of the module
  module.doc() = "Streams, events, plans, checks and simulation: the compiled part of slipstream.";
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const slip::Error& error) {
      try {
        translate(error);
      } catch (py::error_already_set& failed) {
        failed.restore();
      }
    }
  });
  bind_callbacks(module);
  bind_device(module);
  bind_buffer(module);
  bind_stream(module);
  bind_plan(module);
  bind_trace(module);
  bind_communicator(module);
  bind_weights(module);
  py::list codes;
  for (int code = 1; code <= static_cast<int>(slip::ErrorCode::kAborted); ++code)
    codes.append(slip::code_name(static_cast<slip::ErrorCode>(code)));
  module.attr("ERROR_CODES") = py::tuple(codes);
}
