// Device, and functions that all bindings use: positions in Python code, and waits.
#include <pybind11/chrono.h>

#include <algorithm>
#include <chrono>

#include "objects.hpp"

namespace slip::python {
namespace {

std::string g_package;  // folder of this package, with a slash: its frames are not the caller

// A buffer of another Python object, held while a Buffer wraps its memory.
struct Wrapped {
  Py_buffer view{};
  ~Wrapped() { PyBuffer_Release(&view); }
};

template <class Value>
Value one_of(const std::string& text, const char* what, std::initializer_list<std::pair<const char*, Value>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    known += std::string(known.empty() ? "" : ", ") + "'" + name + "'";
  }
  throw py::value_error(std::string(what) + " is '" + text + "'; it must be one of " + known);
}

MemoryKind kind_of(const std::string& text) {
  return one_of<MemoryKind>(
      text, "kind",
      {{"device", MemoryKind::kDevice}, {"pinned", MemoryKind::kPinned}, {"pageable", MemoryKind::kPageable}});
}

// The value of an option of Device().
template <class T>
T option(const std::string& name, py::handle value, const char* expected) {
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    throw py::value_error(name + " is " + py::repr(value).cast<std::string>() + "; it must be " + expected);
  }
}

DeviceOptions options_of(const py::kwargs& given) {
  DeviceOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = key.cast<std::string>();
    if (name == "policy")
      options.policy = one_of<CpuPolicy>(
          option<std::string>(name, value, "a str"), "policy",
          {{"concurrent", CpuPolicy::kConcurrent}, {"single", CpuPolicy::kSingle}, {"random", CpuPolicy::kRandom}});
    else if (name == "seed") options.seed = option<std::uint64_t>(name, value, "an int of at least 0");
    else if (name == "workers") options.compute_workers = option<int>(name, value, "an int");
    else if (name == "queue_depth") options.queue_depth = option<std::size_t>(name, value, "an int of at least 0");
    else if (name == "max_connections") options.max_connections = option<int>(name, value, "an int");
    else if (name == "memory_limit") options.memory_limit = option<std::size_t>(name, value, "a number of bytes");
    else if (name == "strict") options.strict = option<bool>(name, value, "a bool");
    else if (name == "run_functions") options.run_functions = option<bool>(name, value, "a bool");
    else if (name == "launch_blocking") options.launch_blocking = option<bool>(name, value, "a bool");
    else if (name == "label") options.name = Name(option<std::string>(name, value, "a str"));
    else throw py::type_error("Device() has no option '" + name + "'");
  }
  return options;
}

std::shared_ptr<DeviceObject> object_of(Device device) {
  auto made = std::make_shared<DeviceObject>();
  made->handle.emplace(std::move(device));
  return made;
}

std::shared_ptr<StreamObject> stream_object(const std::shared_ptr<DeviceObject>& device, std::optional<Stream> stream,
                                            std::optional<StreamRef> ref, std::string name) {
  auto made = std::make_shared<StreamObject>();
  made->device = device;
  made->name = std::move(name);
  if (stream) {
    made->ref = *stream;
    made->owned.emplace(std::move(*stream));
    std::erase_if(device->streams, [](const auto& each) { return each.expired(); });
    device->streams.push_back(made);
  } else {
    made->ref = ref;
  }
  made->id = made->ref->id();
  return made;
}

std::shared_ptr<StreamObject> open_stream(const std::shared_ptr<DeviceObject>& self, const std::string& name,
                                          bool blocking, int priority) {
  const StreamOptions options{.name = name.empty() ? Name() : Name(name),
                              .flags = blocking ? StreamFlags::kBlocking : StreamFlags::kNonBlocking,
                              .priority = priority};
  const Here here = caller();
  const Device& device = self->get();
  std::optional<Stream> stream = unlocked([&] { return std::optional(device.stream(options, here)); });
  return stream_object(self, std::move(stream), {}, name);
}

std::shared_ptr<BufferObject> alloc(const std::shared_ptr<DeviceObject>& self, std::int64_t elements,
                                    const py::object& dtype, const std::string& kind, const std::string& name) {
  Format format = format_of(dtype);
  const std::size_t bytes = bytes_of(elements, format);
  const MemoryKind memory = kind_of(kind);
  const Here here = caller();
  const Device& device = self->get();
  const auto take = [&] { return unlocked([&] { return device.alloc(bytes, memory, Name(name), here); }); };
  std::optional<Buffer> buffer;
  try {
    buffer.emplace(take());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory || self->dropped.empty()) throw;
    self->free_dropped();
    buffer.emplace(take());
  }
  return make_buffer(self, std::move(*buffer), std::move(format));
}

std::shared_ptr<BufferObject> wrap(const std::shared_ptr<DeviceObject>& self, const py::object& memory,
                                   const std::string& kind, const std::string& name) {
  auto held = std::make_unique<Wrapped>();
  if (PyObject_GetBuffer(memory.ptr(), &held->view, PyBUF_CONTIG | PyBUF_FORMAT) != 0) throw py::error_already_set();
  Format format{held->view.format ? held->view.format : "B", held->view.itemsize};
  void* const data = held->view.buf;
  const auto bytes = static_cast<std::size_t>(held->view.len);
  // Freed with the GIL: with the object, or in destroy_kept().
  std::shared_ptr<void> owner(held.release(), [](void* view) {
    const Locked locked;
    if (locked.entered()) delete static_cast<Wrapped*>(view);
  });
  const MemoryKind memory_kind = kind_of(kind);
  const Here here = caller();
  const Device& device = self->get();
  Buffer buffer = unlocked([&] { return device.wrap(data, bytes, memory_kind, Name(name), here); });
  return make_buffer(self, std::move(buffer), std::move(format), std::move(owner));
}

std::shared_ptr<StreamObject> adopt(const std::shared_ptr<DeviceObject>& self, const py::object& native,
                                    const std::string& name) {
  const py::object handle = py::hasattr(native, "cuda_stream") ? py::object(native.attr("cuda_stream")) : native;
  if (!PyLong_Check(handle.ptr()))
    throw py::type_error("adopt() takes a torch.cuda.Stream, or the number of a cudaStream_t");
  constexpr std::uintptr_t kLegacy = 1;  // cudaStreamLegacy, which torch calls 0
  const auto number = handle.cast<std::uintptr_t>();
  auto* const stream = reinterpret_cast<CUstream_st*>(number == 0 ? kLegacy : number);
  const Here here = caller();
  const Device& device = self->get();
  std::optional<Stream> adopted =
      unlocked([&] { return std::optional(device.adopt(stream, name.empty() ? Name() : Name(name), here)); });
  return stream_object(self, std::move(adopted), {}, name);
}

// Closes the device. With `force` also its streams and buffers; otherwise they are an error.
void close(DeviceObject& self, bool force) {
  if (!self.handle) return;
  std::string open;
  const auto add = [&open](const std::string& each) { open += (open.empty() ? "" : ", ") + each; };
  std::vector<std::shared_ptr<StreamObject>> streams;
  for (const auto& each : self.streams) {
    if (auto stream = each.lock(); stream && stream->owned) streams.push_back(std::move(stream));
  }
  std::vector<std::shared_ptr<BufferObject>> buffers;
  for (const auto& each : self.buffers) {
    if (auto buffer = each.lock(); buffer && buffer->handle) buffers.push_back(std::move(buffer));
  }
  for (const auto& stream : streams) add(stream->text());
  for (const auto& buffer : buffers) add(buffer->name.empty() ? "buffer" : "buffer '" + buffer->name + "'");
  if (!open.empty() && !force)
    throw Error(ErrorCode::kInvalidHandle,
                "device '" + self.handle->info().label + "' is in use by " + open +
                    ": close them first, or call close(force=True)",
                caller());
  for (const auto& buffer : buffers) {
    if (buffer->views == 0)
      buffer->release_handle();  // waits for the device. The others stay allocated while arrays use them
  }
  for (const auto& stream : streams) {
    retire(stream->owned);
    stream->ref.reset();
  }
  retire(self.handle);
}

py::dict memory_of(const DeviceObject& self) {
  const MemoryInfo info = self.get().memory();
  py::dict result;
  result["used"] = info.used;
  result["reserved"] = info.reserved;
  result["peak"] = info.peak;
  result["total"] = info.total;
  return result;
}

}  // namespace

std::size_t bytes_of(std::int64_t elements, const Format& format) {
  if (elements < 0)
    throw Error(ErrorCode::kInvalidValue, "alloc of " + std::to_string(elements) + " elements: at least 1 is possible",
                caller());
  const auto count = static_cast<std::size_t>(elements), size = static_cast<std::size_t>(format.bytes);
  if (count > SIZE_MAX / size) throw py::value_error("the size in bytes does not fit in 64 bits");
  return count * size;
}

DeviceObject::~DeviceObject() {
  auto last = std::make_unique<decltype(dropped)>(std::move(dropped));
  if (closing()) static_cast<void>(last.release());
  else if (inside_callback()) keep_for_later(std::shared_ptr<decltype(dropped)>(std::move(last)));
  else unlocked([&] { last.reset(); });
  retire(handle);
}

void DeviceObject::free_dropped() {
  if (dropped.empty() || inside_callback()) return;
  auto all = std::exchange(dropped, {});
  unlocked([&] { all.clear(); });
}

const Device& DeviceObject::get() const {
  if (!handle) throw Error(ErrorCode::kInvalidHandle, "the device was closed", caller());
  return *handle;
}

Here caller() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (!frame) return {"", 0};
  Py_INCREF(frame);
  Here here{"", 0};
  while (frame) {
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    const std::string file = code.attr("co_filename").cast<std::string>();
    here = {Name(file).c_str(), PyFrame_GetLineNumber(frame)};
    if (g_package.empty() || file.compare(0, g_package.size(), g_package) != 0) break;
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return here;
}

void wait_in_slices(std::optional<double> seconds, const char* what,
                    const std::function<bool(std::chrono::nanoseconds)>& attempt) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);
  constexpr double kForever = 1e9;  // 31 years
  if (seconds && !(*seconds >= 0)) throw py::value_error("a timeout is at least 0 seconds");
  const auto limit = std::chrono::duration<double>(std::min(seconds.value_or(kForever), kForever));
  const auto deadline = Clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(limit);
  for (;;) {
    const std::chrono::nanoseconds left = deadline - Clock::now();
    bool done = false;
    std::exception_ptr error;
    unlocked([&] {
      try {
        done = attempt(std::clamp(left, std::chrono::nanoseconds(1), kSlice));
      } catch (...) {
        error = std::current_exception();
      }
    });
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();  // Ctrl-C, also if it arrived in a callback
    if (error) std::rethrow_exception(error);
    if (done) {
      destroy_kept();
      return;
    }
    if (left <= std::chrono::nanoseconds(0))
      throw Error(ErrorCode::kTimeout, std::string(what) + ": not done after " + std::to_string(*seconds) + " s",
                  caller());
  }
}

void bind_device(py::module_& module) {
  module.def("_set_package", [](const std::string& folder) { g_package = folder; });

  py::class_<DeviceObject, std::shared_ptr<DeviceObject>>(
      module, "Device", "A processor with its own memory and streams: 'cpu', 'sim:NAME' (virtual time) or 'cuda:N'.")
      .def(py::init([](const std::string& name, const py::kwargs& given) {
             const DeviceOptions options = options_of(given);
             const Here here = caller();
             return object_of(unlocked([&] { return Device::open(name, options, here); }));
           }),
           py::arg("name") = "cpu")
      .def_static(
          "open_all",
          [](const std::string& name, int count, const py::kwargs& given) {
            const DeviceOptions options = options_of(given);
            const Here here = caller();
            std::vector<std::shared_ptr<DeviceObject>> objects;
            for (Device& each : unlocked([&] { return Device::open_all(name, count, options, here); }))
              objects.push_back(object_of(std::move(each)));
            return objects;
          },
          py::arg("name"), py::arg("count"), "Devices that can access each other; on sim they share one clock.")
      .def("stream", open_stream, py::arg("name") = "", py::kw_only(), py::arg("blocking") = true,
           py::arg("priority") = 0, "Opens a stream. A blocking one is ordered with the legacy stream, as in CUDA.")
      .def("default_stream",
           [](const std::shared_ptr<DeviceObject>& self) {
             const Device& device = self->get();
             const StreamRef ref = unlocked([&] { return device.default_stream(); });
             return stream_object(self, {}, ref, "default");
           })
      .def("adopt", adopt, py::arg("stream"), py::arg("name") = "",
           "Wraps a native stream of another owner: a torch.cuda.Stream, or the number of a cudaStream_t.")
      .def("alloc", alloc, py::arg("count"), py::arg("dtype") = "u1", py::kw_only(), py::arg("kind") = "device",
           py::arg("name") = "", "Allocates `count` elements of 'device', 'pinned' or 'pageable' memory.")
      .def("wrap", wrap, py::arg("memory"), py::kw_only(), py::arg("kind") = "pageable", py::arg("name") = "",
           "A Buffer over the memory of a numpy array or another writable buffer, which it keeps.")
      .def(
          "copy",
          [](const DeviceObject& self, py::handle to, py::handle source) {
            const RangeObject target = to_range(to), origin = to_range(source);
            const Here here = caller();
            const Device& device = self.get();
            unlocked([&] { device.copy(target.range, origin.range, here); });
          },
          py::arg("to"), py::arg("source"), "Copies, and returns when the copy is done.")
      .def(
          "sync",
          [](DeviceObject& self, std::optional<double> timeout) {
            const Here here = caller();
            const Device device = self.get();
            wait_in_slices(timeout, "sync of the device", [&](auto limit) { return device.sync_for(limit, here); });
            self.free_dropped();
          },
          py::arg("timeout") = py::none(), "Waits for all streams. Raises Timeout after `timeout` seconds.")
      .def(
          "enable_peer_access",
          [](const DeviceObject& self, const DeviceObject& peer) {
            const Here here = caller();
            const Device &device = self.get(), &other = peer.get();
            unlocked([&] { device.enable_peer_access(other, here); });
          },
          py::arg("peer"))
      .def(
          "now_ps",
          [](const DeviceObject& self) {
            const Device& device = self.get();
            return unlocked([&] { return device.now(); });
          },
          "The device's clock in picoseconds: virtual time on sim.")
      .def("memory", memory_of, "Bytes of device memory: used, reserved, peak, total.")
      .def_property_readonly("name", [](const DeviceObject& self) { return self.get().info().name; })
      .def_property_readonly("description", [](const DeviceObject& self) { return self.get().info().description; })
      .def_property_readonly("virtual_time", [](const DeviceObject& self) { return self.get().info().virtual_time; })
      .def_property_readonly(
          "id", [](const DeviceObject& self) { return self.get().id(); }, "Its number in traces.")
      .def_property_readonly("closed", [](const DeviceObject& self) { return !self.handle; })
      .def("close", close, py::kw_only(), py::arg("force") = false,
           "Finishes the work and closes. Open streams and buffers are an error, or are closed too (force=True).")
      .def("__enter__", [](const std::shared_ptr<DeviceObject>& self) { return self; })
      .def("__exit__", [](DeviceObject& self, const py::args&) { close(self, true); })
      .def("__repr__", [](const DeviceObject& self) {
        return self.handle ? "<slipstream.Device '" + self.handle->info().label + "'>"
                           : std::string("<slipstream.Device, closed>");
      });
}

}  // namespace slip::python
