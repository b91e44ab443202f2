// Buffer, Range and the views of their memory.
#include <map>

#include "objects.hpp"

namespace slip::python {
namespace {

// All buffers, by address and by id. Under the GIL.
struct Registry {
  std::map<const std::byte*, BufferObject*> by_address;
  std::map<std::uint64_t, std::weak_ptr<BufferObject>> by_id;
};
Registry& registry() {
  static auto* const kRegistry = new Registry;
  return *kRegistry;
}

void forget(const BufferObject& buffer) {
  registry().by_id.erase(buffer.id);
  const auto found = registry().by_address.find(static_cast<const std::byte*>(buffer.address));
  if (found != registry().by_address.end() && found->second == &buffer) registry().by_address.erase(found);
}

// The memory of a buffer that the host can access directly. Throws for device memory of sim and cuda devices.
View whole_view(const std::shared_ptr<BufferObject>& buffer) {
  const Buffer& handle = buffer->get();
  const std::string& device = buffer->device->get().info().name;
  if (handle.kind() == MemoryKind::kDevice && device.rfind("cpu", 0) != 0)
    throw py::buffer_error("'" + buffer->name + "' is device memory of " + device + ": copy it to pinned memory");
  return {buffer, static_cast<std::byte*>(handle.native()), buffer->bytes, buffer->format, true};
}

// One getbuffer function for View objects. Py_buffer::internal owns the shape and the format.
struct Exported {
  View view;
  Py_ssize_t shape = 0, stride = 0;
};

int export_view(PyObject* self, Py_buffer* out, int flags, const View& view) {
  if ((flags & PyBUF_WRITABLE) != 0 && !view.writable) {
    PyErr_SetString(PyExc_BufferError, "this view is read-only: the op declared the range as read");
    return -1;
  }
  auto* const exported = new Exported{view, 0, view.format.bytes};
  exported->shape = static_cast<Py_ssize_t>(view.bytes) / view.format.bytes;
  *out = {};
  out->obj = self;
  Py_INCREF(self);
  out->buf = view.data;
  out->len = exported->shape * view.format.bytes;
  out->itemsize = view.format.bytes;
  out->readonly = view.writable ? 0 : 1;
  out->ndim = 1;
  out->format = (flags & PyBUF_FORMAT) != 0 ? exported->view.format.code.data() : nullptr;
  out->shape = (flags & PyBUF_ND) != 0 ? &exported->shape : nullptr;
  out->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &exported->stride : nullptr;
  out->internal = exported;
  if (view.buffer) ++view.buffer->views;
  return 0;
}

void release_view(PyObject*, Py_buffer* out) {
  auto* const exported = static_cast<Exported*>(out->internal);
  if (exported->view.buffer) --exported->view.buffer->views;
  delete exported;
}

// Python's error instead of a C++ exception, which must not leave a slot function.
template <class Body>
int guarded(const Body& body) {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  }
  return -1;
}

template <class Object>
void export_by(PyHeapTypeObject* type, getbufferproc get) {
  type->as_buffer.bf_getbuffer = get;
  type->as_buffer.bf_releasebuffer = release_view;
}

// The host's access to a buffer: recorded from __enter__ to __exit__.
struct HostViewObject {
  RangeObject range;
  bool writes = false;
  Here here;
  std::unique_ptr<HostView<std::byte>> write;
  std::unique_ptr<HostView<const std::byte>> read;

  py::object enter() {
    if (write || read) throw Error(ErrorCode::kNotPermitted, "this host view is open already", here);
    range.buffer->get();
    unlocked([&] {
      if (writes) write = std::make_unique<HostView<std::byte>>(range.range, here);
      else read = std::make_unique<HostView<const std::byte>>(range.range, here);
    });
    std::byte* const data = writes ? write->begin() : const_cast<std::byte*>(read->begin());
    return array_of({range.buffer, data, range.range.bytes, range.buffer->format, writes});
  }
  void exit() {
    unlocked([&] {
      write.reset();
      read.reset();
    });
  }
};

RangeObject part_of(const RangeObject& whole, const py::object& index) {
  if (!py::isinstance<py::slice>(index)) {
    // numpy, too, calls this function if it cannot access the memory. Then the error is the reason for that.
    static_cast<void>(whole_view(whole.buffer));
    throw py::type_error(
        "a part of a buffer is buffer[a:b], a range of elements; host_read() and host_write() give access to values");
  }
  const auto slice = py::reinterpret_borrow<py::slice>(index);
  const auto size = static_cast<std::size_t>(whole.buffer->format.bytes);
  std::size_t start = 0, stop = 0, step = 0, count = 0;
  if (!slice.compute(whole.range.bytes / size, &start, &stop, &step, &count)) throw py::error_already_set();
  if (step != 1) throw py::value_error("a range is contiguous: the step must be 1");
  return {whole.buffer, whole.range.slice(start * size, count * size)};
}

RangeObject whole_of(const std::shared_ptr<BufferObject>& buffer) { return {buffer, buffer->get().range()}; }

template <class Class>
void define_host_views(Class& bound) {
  const auto view = [](bool writes) {
    return [writes](const py::object& self) {
      auto made = std::make_unique<HostViewObject>();
      made->range = to_range(self);
      made->writes = writes;
      made->here = caller();
      return made;
    };
  };
  bound.def("host_read", view(false),
            "The host reads pinned or pageable memory: `with buffer.host_read() as array`. Synchronise first. The race "
            "checker records the access.");
  bound.def("host_write", view(true), "The host writes pinned or pageable memory. See host_read.");
}

}  // namespace

std::shared_ptr<BufferObject> make_buffer(std::shared_ptr<DeviceObject> device, Buffer buffer, Format format,
                                          std::shared_ptr<void> wrapped) {
  auto made = std::make_shared<BufferObject>();
  made->bytes = buffer.bytes();
  made->name = std::string(buffer.name().text());
  made->id = buffer.range().id;
  made->address = buffer.native();
  made->handle.emplace(std::move(buffer));
  made->device = std::move(device);
  made->format = std::move(format);
  made->wrapped = std::move(wrapped);
  registry().by_address[static_cast<const std::byte*>(made->address)] = made.get();
  registry().by_id[made->id] = made;
  std::erase_if(made->device->buffers, [](const auto& each) { return each.expired(); });
  made->device->buffers.push_back(made);
  return made;
}

std::shared_ptr<BufferObject> find_buffer(std::uint64_t id) {
  const auto found = registry().by_id.find(id);
  return found == registry().by_id.end() ? nullptr : found->second.lock();
}

std::shared_ptr<BufferObject> find_buffer(const void* address) {
  const auto* const at = static_cast<const std::byte*>(address);
  auto found = registry().by_address.upper_bound(at);
  if (found == registry().by_address.begin()) return nullptr;
  const BufferObject& buffer = *std::prev(found)->second;
  return at < std::prev(found)->first + buffer.bytes ? find_buffer(buffer.id) : nullptr;
}

void BufferObject::release_handle() {
  if (!handle) return;
  forget(*this);
  if (inside_callback() && !closing()) {
    device->dropped.emplace_back(std::move(wrapped), std::move(*handle));
    handle.reset();
    return;
  }
  retire(handle);
  wrapped.reset();  // after the handle, whose ops may use the memory
}

const Buffer& BufferObject::get() const {
  if (!handle) throw Error(ErrorCode::kInvalidHandle, "buffer '" + name + "' was freed", caller());
  return *handle;
}

void BufferObject::free() {
  if (!handle) return;
  if (views > 0)
    throw py::buffer_error("buffer '" + name + "' has " + std::to_string(views) +
                           " views: delete the arrays that use its memory first");
  release_handle();
}

RangeObject to_range(py::handle operand) {
  if (py::isinstance<RangeObject>(operand)) {
    RangeObject range = operand.cast<RangeObject>();
    range.buffer->get();
    return range;
  }
  if (py::isinstance<BufferObject>(operand)) return whole_of(operand.cast<std::shared_ptr<BufferObject>>());
  throw py::type_error("expected a Buffer or a Range of one, got " +
                       py::str(py::type::handle_of(operand).attr("__name__")).cast<std::string>() +
                       "; Device.wrap() makes a Buffer of an array");
}

std::vector<RangeObject> to_ranges(const py::object& operands) {
  if (py::isinstance<RangeObject>(operands) || py::isinstance<BufferObject>(operands)) return {to_range(operands)};
  std::vector<RangeObject> ranges;
  for (const py::handle each : operands) ranges.push_back(to_range(each));
  return ranges;
}

Format format_of(const py::object& dtype) {
  const py::tuple found = py::module_::import("slipstream._dtypes").attr("format_of")(dtype);
  return {found[0].cast<std::string>(), found[1].cast<py::ssize_t>()};
}

py::object array_of(View view) {
  // Guarded by the GIL, not initialised as a static local: the import releases the GIL. Another thread could then hold
  // the GIL and wait for the guard of the static local, while this thread waits for the GIL: a deadlock.
  static PyObject* convert = nullptr;
  if (!convert) {
    py::object found;
    try {
      found = py::module_::import("numpy").attr("asarray");
    } catch (py::error_already_set&) {
      found = py::module_::import("builtins").attr("memoryview");
    }
    if (!convert) convert = found.release().ptr();
  }
  return py::reinterpret_borrow<py::object>(convert)(py::cast(std::move(view)));
}

const char* in_text(MemoryKind kind) {
  return kind == MemoryKind::kDevice ? "device" : kind == MemoryKind::kPinned ? "pinned" : "pageable";
}

void bind_buffer(py::module_& module) {
  py::class_<View>(module, "View", py::buffer_protocol(), py::custom_type_setup([](PyHeapTypeObject* type) {
                     export_by<View>(type, [](PyObject* self, Py_buffer* out, int flags) {
                       return guarded([&] { return export_view(self, out, flags, *py::cast<View*>(self)); });
                     });
                   }),
                   "Memory of a buffer, through the buffer protocol.");

  py::class_<RangeObject> range(module, "Range", "Some elements of a buffer. It keeps the buffer.");
  range.def_property_readonly("buffer", [](const RangeObject& self) { return self.buffer; })
      .def_property_readonly(
          "offset", [](const RangeObject& self) { return self.range.offset; }, "In bytes.")
      .def_property_readonly("nbytes", [](const RangeObject& self) { return self.range.bytes; })
      .def("__len__",
           [](const RangeObject& self) {
             return self.range.bytes / static_cast<std::size_t>(self.buffer->format.bytes);
           })
      .def("__getitem__", part_of)
      .def("__repr__", [](const RangeObject& self) {
        return "<slipstream.Range of '" + self.buffer->name + "', " + std::to_string(self.range.bytes) + " bytes at " +
               std::to_string(self.range.offset) + ">";
      });
  define_host_views(range);

  py::class_<HostViewObject>(module, "HostView", "The host's access to a buffer; a context manager.")
      .def("__enter__", &HostViewObject::enter)
      .def("__exit__", [](HostViewObject& self, const py::args&) { self.exit(); });

  py::class_<BufferObject, std::shared_ptr<BufferObject>> buffer(
      module, "Buffer", py::buffer_protocol(), py::custom_type_setup([](PyHeapTypeObject* type) {
        export_by<BufferObject>(type, [](PyObject* self, Py_buffer* out, int flags) {
          return guarded(
              [&] { return export_view(self, out, flags, whole_view(py::cast<std::shared_ptr<BufferObject>>(self))); });
        });
      }),
      "Memory of a device or of the host. Freeing it waits for the work of its device.");
  buffer.def_property_readonly("nbytes", [](const BufferObject& self) { return self.bytes; })
      .def_property_readonly("name", [](const BufferObject& self) { return self.name; })
      .def_property_readonly(
          "id", [](const BufferObject& self) { return self.id; }, "Its number in traces.")
      .def_property_readonly("kind", [](const BufferObject& self) { return in_text(self.get().kind()); })
      .def_property_readonly("format", [](const BufferObject& self) { return self.format.code; })
      .def_property_readonly("itemsize", [](const BufferObject& self) { return self.format.bytes; })
      .def_property_readonly("device", [](const BufferObject& self) { return self.device; })
      .def_property_readonly(
          "address", [](const BufferObject& self) { return reinterpret_cast<std::uintptr_t>(self.get().native()); },
          "For native calls.")
      .def_property_readonly("closed", [](const BufferObject& self) { return !self.handle; })
      .def("__len__", [](const BufferObject& self) { return self.bytes / static_cast<std::size_t>(self.format.bytes); })
      .def("__getitem__", [](const std::shared_ptr<BufferObject>& self,
                             const py::object& index) { return part_of(whole_of(self), index); })
      .def("free", &BufferObject::free, "Frees the memory now. Raises BufferError while arrays use it.")
      .def("__enter__", [](const std::shared_ptr<BufferObject>& self) { return self; })
      .def("__exit__", [](BufferObject& self, const py::args&) { self.free(); })
      .def("__repr__", [](const BufferObject& self) {
        return "<slipstream.Buffer '" + self.name + "', " + std::to_string(self.bytes) + " bytes" +
               (self.handle ? ">" : ", freed>");
      });
  define_host_views(buffer);
}

}  // namespace slip::python
