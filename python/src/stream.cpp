// Stream and Event.
#include <pybind11/chrono.h>

#include "base/stream_text.hpp"
#include "callbacks.hpp"
#include "plan.hpp"

namespace slip::python {
namespace {

std::vector<Range> ranges_of(const std::vector<RangeObject>& objects) {
  std::vector<Range> ranges;
  for (const RangeObject& each : objects) ranges.push_back(each.range);
  return ranges;
}

std::vector<std::shared_ptr<BufferObject>> buffers_of(const std::vector<RangeObject>& reads,
                                                      const std::vector<RangeObject>& writes) {
  std::vector<std::shared_ptr<BufferObject>> buffers;
  for (const auto* list : {&reads, &writes}) {
    for (const RangeObject& each : *list) buffers.push_back(each.buffer);
  }
  return buffers;
}

Cost cost_of(std::uint64_t bytes, std::uint64_t flops, double width, Picos time_ps) {
  return {.bytes = bytes, .flops = flops, .width = width, .time = time_ps};
}

Name name_of(const py::object& name, const py::object& function) {
  if (!name.is_none()) return Name(name.cast<std::string>());
  if (py::hasattr(function, "__name__")) return Name(function.attr("__name__").cast<std::string>());
  return Name(py::str(py::type::handle_of(function).attr("__name__")).cast<std::string>());
}

// The ints and floats of a launch, after the Call that the kernel runs.
std::vector<Scalar> scalars_of(const py::object& values, std::vector<bool>& reals) {
  std::vector<Scalar> scalars(1);
  for (const py::handle each : values) {
    if (PyFloat_Check(each.ptr())) scalars.emplace_back(each.cast<double>());
    else if (PyLong_Check(each.ptr())) scalars.emplace_back(each.cast<std::int64_t>());
    else throw py::type_error("a scalar must be an int or a float");
    reals.push_back(PyFloat_Check(each.ptr()));
  }
  return scalars;
}

void require_callable(const py::object& function) {
  if (!PyCallable_Check(function.ptr())) throw py::type_error("a kernel or host function must be callable");
}

void launch_kernel(const StreamObject& self, const py::object& kernel, const py::object& reads,
                   const py::object& writes, const py::object& scalars, const py::object& name, std::uint64_t bytes,
                   std::uint64_t flops, double width, Picos time_ps) {
  const Here here = caller();
  const StreamRef stream = self.get();
  const std::vector<RangeObject> in = to_ranges(reads), out = to_ranges(writes);
  const std::vector<Range> in_ranges = ranges_of(in), out_ranges = ranges_of(out);
  const Cost cost = cost_of(bytes, flops, width, time_ps);
  const DeviceOptions& options = self.device->get().options();
  const CaptureRefs refs(stream, in, out);
  if (py::isinstance<py::str>(kernel)) {
    const Name model(kernel.cast<std::string>());
    if (!self.device->get().info().virtual_time)
      throw Error(
          ErrorCode::kUnsupported,
          "kernel '" + std::string(model.text()) + "' is a name without a function: only a sim device can run it",
          here);
    const Operands operands{
        .reads = in_ranges, .writes = out_ranges, .name = name.is_none() ? model : Name(name.cast<std::string>())};
    unlocked([&] { stream.launch(modelled_kernel(model), operands, cost, here); });
    return;
  }
  require_callable(kernel);
  std::vector<bool> reals;
  std::vector<Scalar> values = scalars_of(scalars, reals);
  const Name label = name_of(name, kernel);
  const Kernel& python = python_kernel(label);
  auto* const call = new Call(kernel, buffers_of(in, out), std::move(reals));
  values[0] = Scalar(call);
  const Operands operands{.reads = in_ranges, .writes = out_ranges, .scalars = values, .name = label};
  const bool capturing = stream.capturing();
  std::exception_ptr refused;
  unlocked([&] {
    try {
      stream.launch(python, operands, cost, here);
    } catch (...) {
      refused = std::current_exception();
    }
  });
  // The op, or the plan, has the reference now, and releases it after the run. If no function will run, this thread
  // releases it. With launch_blocking an error may come from the run itself, which has released the reference already.
  const bool never_runs = !options.run_functions && !capturing;
  if (never_runs || (refused && !options.launch_blocking)) call->release();
  if (refused) std::rethrow_exception(refused);
}

void host(const StreamObject& self, const py::object& function, const py::object& reads, const py::object& writes,
          const py::object& name, Picos time_ps) {
  const Here here = caller();
  require_callable(function);
  const StreamRef stream = self.get();
  const std::vector<RangeObject> in = to_ranges(reads), out = to_ranges(writes);
  const std::vector<Range> in_ranges = ranges_of(in), out_ranges = ranges_of(out);
  const CaptureRefs refs(stream, in, out);
  const Operands touches{.reads = in_ranges, .writes = out_ranges, .name = name_of(name, function)};
  const std::shared_ptr<Call> call(new Call(function, buffers_of(in, out), {}), [](Call* each) { each->release(); });
  unlocked([&] { stream.host([call] { call->run(); }, touches, {.time = time_ps}, here); });
}

void copy(const StreamObject& self, py::handle to, py::handle source, const std::string& name) {
  const Here here = caller();
  const StreamRef stream = self.get();
  const std::vector<RangeObject> in{to_range(source)}, out{to_range(to)};
  const CaptureRefs refs(stream, in, out);
  unlocked([&] { stream.copy(out[0].range, in[0].range, name.empty() ? Name() : Name(name), here); });
}

void fill(const StreamObject& self, py::handle to, int value, const std::string& name) {
  const Here here = caller();
  if (value < 0 || value > 255) throw py::value_error("a fill value is a byte, 0 to 255");
  const StreamRef stream = self.get();
  const std::vector<RangeObject> out{to_range(to)};
  const CaptureRefs refs(stream, {}, out);
  unlocked(
      [&] { stream.fill(out[0].range, static_cast<unsigned char>(value), name.empty() ? Name() : Name(name), here); });
}

std::shared_ptr<EventObject> record(const StreamObject& self, std::shared_ptr<EventObject> event, bool timed) {
  const Here here = caller();
  const StreamRef stream = self.get();
  if (!event) {
    event = std::make_shared<EventObject>();
    event->timed = timed;
  }
  unlocked([&] {
    if (event->timed) stream.record(event->event, here);
    else stream.record(static_cast<Event&>(event->event), here);
  });
  return event;
}

void wait(const StreamObject& self, const py::object& other) {
  const Here here = caller();
  const StreamRef stream = self.get();
  if (py::isinstance<EventObject>(other)) {
    const auto event = other.cast<std::shared_ptr<EventObject>>();
    unlocked([&] { stream.wait(event->event, here); });
    return;
  }
  if (!py::isinstance<StreamObject>(other)) throw py::type_error("wait() takes an Event or a Stream");
  const StreamRef before = other.cast<const StreamObject&>().get();
  unlocked([&] { stream.wait(before.record(here), here); });
}

void on_flag(const StreamObject& self, py::handle flag, std::uint32_t value, const std::string& name, bool write) {
  const Here here = caller();
  const StreamRef stream = self.get();
  const std::vector<RangeObject> ranges{to_range(flag)};
  const CaptureRefs refs(stream, write ? std::vector<RangeObject>{} : ranges, ranges);
  const Name label = name.empty() ? Name() : Name(name);
  unlocked([&] {
    if (write) stream.write_value(ranges[0].range, value, label, here);
    else stream.wait_value(ranges[0].range, value, label, here);
  });
}

std::shared_ptr<BufferObject> alloc(const StreamObject& self, std::int64_t elements, const py::object& dtype,
                                    const std::string& name) {
  const Here here = caller();
  Format format = format_of(dtype);
  const std::size_t bytes = bytes_of(elements, format);
  const StreamRef stream = self.get();
  Buffer buffer = unlocked([&] { return stream.alloc(bytes, Name(name), here); });
  return make_buffer(self.device, std::move(buffer), std::move(format));
}

void free_in_order(const StreamObject& self, BufferObject& buffer) {
  const Here here = caller();
  const StreamRef stream = self.get();
  buffer.get();
  if (buffer.views > 0) throw py::buffer_error("buffer '" + buffer.name + "' has views: delete its arrays first");
  unlocked([&] { stream.free(std::move(*buffer.handle), here); });
  buffer.release_handle();
}

void sync(const StreamObject& self, std::optional<double> timeout) {
  const Here here = caller();
  const StreamRef stream = self.get();
  wait_in_slices(timeout, "sync of a stream", [&](auto limit) { return stream.sync_for(limit, here); });
}

void close(StreamObject& self) {
  retire(self.owned);
  self.ref.reset();
}

void bind_events(py::module_& module) {
  py::class_<EventObject, std::shared_ptr<EventObject>>(module, "Event",
                                                        "A point in a stream that streams and the host can wait for.")
      .def(py::init([](bool timed) {
             auto event = std::make_shared<EventObject>();
             event->timed = timed;
             return event;
           }),
           py::kw_only(), py::arg("timed") = false)
      .def(
          "query",
          [](const EventObject& self) {
            const Here here = caller();
            return unlocked([&] { return self.event.query(here); });
          },
          "True if the work before the point is done. Never blocks. Raises the work's error.")
      .def(
          "sync",
          [](const EventObject& self, std::optional<double> timeout) {
            const Here here = caller();
            wait_in_slices(timeout, "sync of an event", [&](auto limit) { return self.event.sync_for(limit, here); });
          },
          py::arg("timeout") = py::none(), "Waits for the work before the point.")
      .def(
          "elapsed_ns",
          [](const EventObject& self, const EventObject& start) {
            return unlocked([&] { return (self.event - start.event).count(); });
          },
          py::arg("start"), "Nanoseconds from `start` to this event; both timed, of one device, and reached.")
      .def(
          "elapsed_time",
          [](const EventObject& self, const EventObject& end) {
            return static_cast<double>(unlocked([&] { return (end.event - self.event).count(); })) * 1e-6;
          },
          py::arg("end"), "Milliseconds from this event to `end`, as torch.cuda.Event.elapsed_time.")
      .def_property_readonly("recorded", [](const EventObject& self) { return self.event.recorded(); })
      .def_property_readonly("timed", [](const EventObject& self) { return self.timed; });
}

}  // namespace

StreamRef StreamObject::get() const {
  if (!ref) throw Error(ErrorCode::kInvalidHandle, text() + " was closed", caller());
  return *ref;
}

std::string StreamObject::text() const { return base::stream_text(id, name); }

void bind_stream(py::module_& module) {
  bind_events(module);
  const py::tuple none;
  py::class_<StreamObject, std::shared_ptr<StreamObject>>(
      module, "Stream",
      "An ordered queue of work on a device. Calls return once the work is queued. As a context manager it "
      "synchronises and closes at the end.")
      .def_static(
          "adopt",
          [](const py::object& stream, py::object device, const std::string& name) {
            if (device.is_none()) {
              if (!py::hasattr(stream, "device")) {
                throw py::type_error(
                    "Stream.adopt(): this is no torch stream, so name its device: adopt(stream, device)");
              }
              device = py::type::of<DeviceObject>()(py::str(stream.attr("device")));
            }
            return device.attr("adopt")(stream, name);
          },
          py::arg("stream"), py::arg("device") = py::none(), py::arg("name") = "",
          "A stream that another library owns, such as torch.cuda.current_stream(), on its device. See Device.adopt.")
      .def("launch", launch_kernel, py::arg("kernel"), py::arg("reads") = none, py::arg("writes") = none,
           py::arg("scalars") = none, py::kw_only(), py::arg("name") = py::none(), py::arg("bytes") = 0,
           py::arg("flops") = 0, py::arg("width") = 1.0, py::arg("time_ps") = 0,
           "Runs kernel(*reads, *writes, *scalars) with arrays of the declared ranges. A str is a kernel without a "
           "function, for sim devices. bytes, flops, width and time_ps are its cost.")
      .def("host", host, py::arg("function"), py::arg("reads") = none, py::arg("writes") = none, py::kw_only(),
           py::arg("name") = py::none(), py::arg("time_ps") = 0,
           "Runs function() on the host in stream order. It must not call the runtime.")
      .def("copy", copy, py::arg("to"), py::arg("source"), py::arg("name") = "")
      .def("fill", fill, py::arg("to"), py::arg("value"), py::arg("name") = "")
      .def("record", record, py::arg("event") = py::none(), py::kw_only(), py::arg("timed") = false,
           "Records `event`, or a new one, after the work issued so far.")
      .def("wait", wait, py::arg("other"), "Later work waits for an Event, or for the work so far of a Stream.")
      .def(
          "wait_value",
          [](const StreamObject& self, py::handle flag, std::uint32_t value, const std::string& name) {
            on_flag(self, flag, value, name, false);
          },
          py::arg("flag"), py::arg("value"), py::arg("name") = "", "Blocks the stream until the 32-bit flag >= value.")
      .def(
          "write_value",
          [](const StreamObject& self, py::handle flag, std::uint32_t value, const std::string& name) {
            on_flag(self, flag, value, name, true);
          },
          py::arg("flag"), py::arg("value"), py::arg("name") = "", "Sets the 32-bit flag in stream order.")
      .def("alloc", alloc, py::arg("count"), py::arg("dtype") = "u1", py::kw_only(), py::arg("name") = "",
           "Allocates device memory in stream order.")
      .def("free", free_in_order, py::arg("buffer"), "Frees memory of Stream.alloc in stream order.")
      .def("sync", sync, py::arg("timeout") = py::none(), "Waits for the work. Raises Timeout after `timeout` seconds.")
      .def(
          "query",
          [](const StreamObject& self) {
            const Here here = caller();
            const StreamRef stream = self.get();
            return unlocked([&] { return stream.query(here); });
          },
          "True if all work is done.")
      .def_property_readonly("capturing", [](const StreamObject& self) { return self.get().capturing(); })
      .def_property_readonly("blocking",
                             [](const StreamObject& self) { return self.get().flags() == StreamFlags::kBlocking; })
      .def_property_readonly("priority", [](const StreamObject& self) { return self.get().priority(); })
      .def_property_readonly(
          "id", [](const StreamObject& self) { return self.get().id(); }, "Its number in traces.")
      .def_property_readonly("name", [](const StreamObject& self) { return self.name; })
      .def_property_readonly("device", [](const StreamObject& self) { return self.device; })
      .def_property_readonly(
          "native", [](const StreamObject& self) { return reinterpret_cast<std::uintptr_t>(self.get().native()); },
          "The cudaStream_t as a number; 0 on devices without native streams.")
      .def_property_readonly("closed", [](const StreamObject& self) { return !self.ref; })
      .def("close", close, "Closes the stream. Its work still runs.")
      .def("__enter__", [](const std::shared_ptr<StreamObject>& self) { return self; })
      .def("__exit__",
           [](StreamObject& self, const py::object& type, const py::args&) {
             struct Close {  // also after an error of sync()
               StreamObject& stream;
               ~Close() { close(stream); }
             } const at_end{self};
             if (type.is_none() && self.ref) sync(self, {});
           })
      .def("__repr__", [](const StreamObject& self) {
        return "<slipstream.Stream '" + self.name + "'" + (self.ref ? ">" : ", closed>");
      });
}

}  // namespace slip::python
