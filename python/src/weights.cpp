// WeightStreamer and WeightFiles. `slipstream.offload` uses them.
//
// acquire() and release() are called some hundred times in each step of a model, so they do not look for the caller's
// position in the Python code.
#include <unistd.h>

#include "objects.hpp"
#include "trace.hpp"

namespace slip::python {
namespace {

constexpr Here kHere{"slipstream", 0};

struct FilesObject {
  WeightSource source;
  std::shared_ptr<TensorFiles> tensors;
};

struct StreamerObject {
  std::shared_ptr<WeightStreamer> handle;
  std::shared_ptr<DeviceObject> device;
  std::vector<std::shared_ptr<BufferObject>> buffers;  // kept alive: of the sources, and of the option `memory`
  std::vector<py::object> kept;                        // kept alive: objects whose memory is a source
  pid_t process = ::getpid();

  ~StreamerObject() { close(); }
  // The streamer waits for its loads. After a fork its threads and its device do not exist in the child: it is leaked
  // there.
  void close() {
    if (!handle) return;
    auto last = std::make_unique<std::shared_ptr<WeightStreamer>>(std::move(handle));
    handle.reset();
    if (closing() || process != ::getpid()) static_cast<void>(last.release());
    else if (inside_callback()) keep_for_later(std::move(*last));
    else unlocked([&] { last.reset(); });
    buffers.clear();
    kept.clear();
  }
  std::shared_ptr<WeightStreamer> get() const {
    if (!handle) throw Error(ErrorCode::kInvalidHandle, "the streamer was closed", caller());
    if (process != ::getpid())
      throw Error(ErrorCode::kInvalidHandle, "a streamer of the parent process: a forked child cannot use it",
                  caller());
    return handle;
  }
};

struct CompressedObject {
  GroupSource source;
};

// Memory of an object with the buffer protocol.
std::span<const std::byte> bytes_of(const py::memoryview& view) {
  const Py_buffer* const bytes = PyMemoryView_GET_BUFFER(view.ptr());
  if (!PyBuffer_IsContiguous(bytes, 'C')) throw py::buffer_error("the memory of a group must be contiguous");
  return {static_cast<const std::byte*>(bytes->buf), static_cast<std::size_t>(bytes->len)};
}

// A group's source: a Buffer or Range of pinned memory, CompressedWeights, (WeightFiles, names of tensors), or an
// object with the buffer protocol.
GroupSource source_of(StreamerObject& self, py::handle given) {
  const Here here = caller();
  if (py::isinstance<CompressedObject>(given)) return given.cast<const CompressedObject&>().source;
  if (py::isinstance<BufferObject>(given) || py::isinstance<RangeObject>(given)) {
    const RangeObject range = to_range(given);
    self.buffers.push_back(range.buffer);
    return GroupSource::pinned(range.range, here);
  }
  if (py::isinstance<py::tuple>(given)) {
    const auto pair = given.cast<py::tuple>();
    if (pair.size() != 2 || !py::isinstance<FilesObject>(pair[0]))
      throw py::type_error("a source of tensors is (WeightFiles, list of names)");
    return GroupSource::tensors(pair[0].cast<const FilesObject&>().source, pair[1].cast<std::vector<std::string>>(),
                                here);
  }
  const auto view = py::memoryview(py::reinterpret_borrow<py::object>(given));
  self.kept.push_back(view);
  return GroupSource::memory(bytes_of(view), here);
}

CompressedObject compress(const std::shared_ptr<DeviceObject>& device, const py::object& data,
                          const std::string& type) {
  const Here here = caller();
  const std::optional<DataType> found = data_type_of(type);
  if (!found) throw Error(ErrorCode::kInvalidValue, "no data type '" + type + "'", here);
  const auto view = py::memoryview(data);
  const std::span<const std::byte> bytes = bytes_of(view);
  const Device& on = device->get();
  return unlocked(
      [&] { return CompressedObject{GroupSource::compressed(on, GroupSource::memory(bytes, *found, here), here)}; });
}

StreamerOptions options_of(StreamerObject& self, const py::kwargs& given) {
  StreamerOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = key.cast<std::string>();
    if (value.is_none()) continue;
    if (name == "budget") options.budget = value.cast<std::uint64_t>();
    else if (name == "slowdown") options.slowdown = value.cast<double>();
    else if (name == "host_memory") options.host_memory = value.cast<std::uint64_t>();
    else if (name == "ring") options.ring = value.cast<std::uint64_t>();
    else if (name == "stream_all") options.stream_all = value.cast<bool>();
    else if (name == "learn") options.learn = value.cast<bool>();
    else if (name == "search_effort") options.search_effort = value.cast<std::uint64_t>();
    else if (name == "load") {
      const auto [rate, latency] = value.cast<std::pair<double, Picos>>();
      options.load = {.bytes_per_second = rate, .latency = latency};
    } else if (name == "decode") {
      const auto [rate, latency] = value.cast<std::pair<double, Picos>>();
      options.decode = {.bytes_per_second = rate, .latency = latency};
    } else if (name == "memory") {
      const RangeObject range = to_range(value);
      self.buffers.push_back(range.buffer);
      options.memory = range.range;
    } else throw py::type_error("WeightStreamer() has no option '" + name + "'");
  }
  return options;
}

std::shared_ptr<StreamerObject> make(const std::shared_ptr<DeviceObject>& device, const py::iterable& groups,
                                     const py::kwargs& given) {
  auto made = std::make_shared<StreamerObject>();
  made->device = device;
  std::vector<StreamedGroup> all;
  for (const py::handle each : groups) {
    const auto pair = each.cast<py::tuple>();
    if (pair.size() != 2) throw py::type_error("a group is (name, source)");
    all.push_back({pair[0].cast<std::string>(), source_of(*made, pair[1])});
  }
  const StreamerOptions options = options_of(*made, given);
  const Here here = caller();
  const Device& on = device->get();
  made->handle = unlocked([&] { return std::make_shared<WeightStreamer>(on, std::move(all), options, here); });
  return made;
}

std::uint32_t add_pass(const StreamerObject& self, const std::string& name, const py::iterable& uses) {
  std::vector<GroupUse> order;
  for (const py::handle each : uses) {
    if (py::isinstance<py::str>(each)) {
      order.push_back({each.cast<std::string>()});
      continue;
    }
    const auto [group, time_ps, held] = each.cast<std::tuple<std::string, Picos, std::uint32_t>>();
    order.push_back({group, time_ps, held});
  }
  const Here here = caller();
  const auto streamer = self.get();
  return unlocked([&] { return streamer->add_pass(name, order, here).index; });
}

std::uintptr_t address_of(Range range) { return reinterpret_cast<std::uintptr_t>(WeightStreamer::address(range)); }

std::uintptr_t acquire(const StreamerObject& self, std::uint32_t group, const StreamObject& stream) {
  const auto streamer = self.get();
  const StreamRef in = stream.get();
  return unlocked([&] { return address_of(streamer->acquire(group, in, kHere)); });
}

void release(const StreamerObject& self, std::uint32_t group, const StreamObject& stream) {
  const auto streamer = self.get();
  const StreamRef in = stream.get();
  unlocked([&] { streamer->release(group, in, kHere); });
}

py::dict plan_of(const StreamerObject& self, std::uint32_t pass) {
  const Here here = caller();
  const auto streamer = self.get();
  const WeightsPlan& plan = streamer->plan_of({pass}, here);
  const Costs& costs = streamer->costs_of({pass}, here);
  const Graph& graph = streamer->graph_of({pass}, here);
  py::list groups;
  for (const WeightGroup& group : plan.groups) {
    py::dict each;
    each["name"] = graph.values()[group.parts.front().bytes.value.index].name;
    each["bytes"] = group.bytes;
    each["resident"] = group.resident;
    each["from_disk"] = group.from_disk;
    each["compressed_bytes"] = group.compressed_bytes;
    groups.append(each);
  }
  py::dict result;
  result["groups"] = groups;
  result["loads"] = plan.loads.size();
  result["resident_bytes"] = plan.resident_bytes;
  result["ring_bytes"] = plan.ring_bytes;
  result["slot_bytes"] = plan.slot_bytes;
  result["streamed_bytes"] = plan.streamed_bytes;
  result["link_bytes"] = plan.link_bytes();
  result["step_ps"] = plan.step;
  result["compute_ps"] = plan.compute;
  result["loading_ps"] = plan.loading;
  result["load"] = py::make_tuple(costs.load.bytes_per_second, costs.load.latency);
  result["decode"] = py::make_tuple(costs.decode.bytes_per_second, costs.decode.latency);
  return result;
}

py::dict predict(const StreamerObject& self, std::uint32_t pass, int steps) {
  const Here here = caller();
  const auto streamer = self.get();
  Prediction predicted = unlocked([&] { return streamer->predict({pass}, steps, here); });
  py::dict result;
  result["step_ps"] = predicted.step;
  result["first_step_ps"] = predicted.first_step;
  result["exposed_ps"] = predicted.exposed;
  result["loaded_bytes"] = predicted.loaded_bytes;
  result["device_bytes"] = predicted.device_bytes;
  result["trace"] = TraceObject{std::make_shared<const TraceData>(std::move(predicted.trace))};
  return result;
}

py::dict report_of(const StreamerObject& self) {
  const auto streamer = self.get();
  const StreamerReport report = unlocked([&] { return streamer->report(); });
  py::dict result;
  result["steps"] = report.steps;
  result["uses"] = report.uses;
  result["planned_loads"] = report.planned.count;
  result["planned_bytes"] = report.planned.bytes;
  result["on_demand_loads"] = report.on_demand.count;
  result["on_demand_bytes"] = report.on_demand.bytes;
  result["stalled_ps"] = report.stalled;
  result["unplanned"] = report.unplanned;
  result["skipped"] = report.skipped;
  result["broken_off"] = report.broken_off;
  result["replans"] = report.replans;
  result["text"] = report.text();
  return result;
}

// A Buffer over memory at an address, for example of a torch.Tensor, which `owner` keeps.
std::shared_ptr<BufferObject> wrap_address(const std::shared_ptr<DeviceObject>& device, std::uintptr_t address,
                                           std::size_t bytes, const std::string& kind, py::object owner) {
  const MemoryKind memory = kind == "device" ? MemoryKind::kDevice : MemoryKind::kPinned;
  const Here here = caller();
  const Device& on = device->get();
  Buffer buffer = unlocked([&] { return on.wrap(reinterpret_cast<void*>(address), bytes, memory, Name(), here); });
  std::shared_ptr<void> held(new py::object(std::move(owner)), [](void* object) {
    const Locked locked;  // not entered: the interpreter exits, and the object is leaked
    if (locked.entered()) delete static_cast<py::object*>(object);
  });
  return make_buffer(device, std::move(buffer), {}, std::move(held));
}

void bind_files(py::module_& module) {
  py::class_<FilesObject, std::shared_ptr<FilesObject>>(
      module, "WeightFiles", "The tensors of safetensors files: a file, an index, or a folder with one of them.")
      .def(py::init([](const std::string& path) {
             const Here here = caller();
             auto made = std::make_shared<FilesObject>();
             unlocked([&] {
               made->source = WeightSource::files(path, here);
               made->tensors = std::make_shared<TensorFiles>(TensorFiles::open(path, here));
             });
             return made;
           }),
           py::arg("path"))
      .def(
          "tensors",
          [](const FilesObject& self) {
            py::dict result;
            for (const TensorInfo& tensor : self.tensors->tensors())
              result[py::str(tensor.name)] =
                  py::make_tuple(std::string(data_type_name(tensor.type)), tensor.shape, tensor.bytes);
            return result;
          },
          "By name: (data type, shape, bytes).")
      .def(
          "read",
          [](const FilesObject& self, const std::string& name, std::uintptr_t address, std::uint64_t bytes) {
            const Here here = caller();
            const auto tensors = self.tensors;
            unlocked([&] {
              const TensorInfo& tensor = tensors->at(name, here);
              if (tensor.bytes != bytes)
                throw Error(ErrorCode::kInvalidValue,
                            "tensor '" + name + "' has " + std::to_string(tensor.bytes) + " bytes, not " +
                                std::to_string(bytes),
                            here);
              tensors->read(tensor, reinterpret_cast<void*>(address), here);
            });
          },
          py::arg("name"), py::arg("address"), py::arg("nbytes"), "Reads a tensor into host memory at an address.")
      .def(
          "read_rows",
          [](const FilesObject& self, const std::string& name, const std::vector<std::uint64_t>& rows,
             std::uintptr_t address) {
            const Here here = caller();
            const auto tensors = self.tensors;
            unlocked([&] {
              const TensorInfo& tensor = tensors->at(name, here);
              const std::uint64_t count = tensor.shape.empty() ? 0 : tensor.shape.front();
              for (const std::uint64_t row : rows) {
                if (row >= count)
                  throw Error(
                      ErrorCode::kInvalidValue,
                      "tensor '" + name + "' has " + std::to_string(count) + " rows, no row " + std::to_string(row),
                      here);
                const std::uint64_t bytes = tensor.bytes / count, at = row * bytes;
                tensors->read(tensor, at, reinterpret_cast<void*>(address + at), bytes, here);
              }
            });
          },
          py::arg("name"), py::arg("rows"), py::arg("address"),
          "Reads rows of a tensor to their places in memory for the whole tensor at an address.");
}

}  // namespace

void bind_weights(py::module_& module) {
  bind_files(module);
  py::class_<CompressedObject>(module, "CompressedWeights",
                               "The bytes of one group of weights, compressed without loss in pinned memory.")
      .def(py::init(&compress), py::arg("device"), py::arg("data"), py::arg("dtype"),
           "`data`: an object with the buffer protocol. `dtype`: as in safetensors files, \"BF16\".")
      .def_property_readonly("nbytes", [](const CompressedObject& self) { return self.source.bytes(); })
      .def_property_readonly("compressed_nbytes",
                             [](const CompressedObject& self) { return self.source.compressed_bytes(); })
      .def(
          "read",
          [](const CompressedObject& self, std::uintptr_t address) {
            const Here here = caller();
            unlocked([&] { self.source.read({reinterpret_cast<std::byte*>(address), self.source.bytes()}, here); });
          },
          py::arg("address"), "Decodes the bytes into host memory at an address.");
  module.def("_wrap_address", wrap_address, py::arg("device"), py::arg("address"), py::arg("nbytes"), py::arg("kind"),
             py::arg("owner"));
  py::class_<StreamerObject, std::shared_ptr<StreamerObject>>(
      module, "WeightStreamer",
      "Weights larger than the device: loads groups of weights ahead of their uses. slipstream.offload uses it for "
      "PyTorch modules.")
      .def(py::init(&make), py::arg("device"), py::arg("groups"),
           "`groups`: (name, source) pairs. Options: budget, slowdown, host_memory, ring, stream_all, memory, load, "
           "decode, learn, search_effort, as in slip::StreamerOptions.")
      .def("add_pass", add_pass, py::arg("name"), py::arg("uses") = py::tuple(),
           "`uses`: names of groups, or (name, time_ps, held), in order; held: later uses that begin before its end.")
      .def(
          "plan",
          [](const StreamerObject& self) {
            const Here here = caller();
            const auto streamer = self.get();
            unlocked([&] { streamer->plan(here); });
          },
          "Chooses the resident groups, takes the memory and fills them.")
      .def(
          "begin",
          [](const StreamerObject& self, std::uint32_t pass) {
            const auto streamer = self.get();
            unlocked([&] { streamer->begin({pass}, kHere); });
          },
          py::arg("pass_"), "Begins a step.")
      .def("acquire", acquire, py::arg("group"), py::arg("stream"),
           "The address of a group. Later work of the stream finds its bytes there, until release().")
      .def("release", release, py::arg("group"), py::arg("stream"),
           "Ends a use after the work that the stream has so far.")
      .def(
          "resident",
          [](const StreamerObject& self, std::uint32_t group) -> py::object {
            const Here here = caller();
            const std::optional<Range> place = self.get()->resident(group, here);
            return place ? py::object(py::int_(address_of(*place))) : py::none();
          },
          py::arg("group"), "The address of a group that stays on the device; None: it is streamed.")
      .def(
          "group",
          [](const StreamerObject& self, const std::string& name) {
            const Here here = caller();
            return self.get()->group(name, here);
          },
          py::arg("name"), "The number of a group.")
      .def("plan_of", plan_of, py::arg("pass_"))
      .def(
          "describe",
          [](const StreamerObject& self, std::uint32_t pass) {
            const Here here = caller();
            return self.get()->describe({pass}, here);
          },
          py::arg("pass_"))
      .def(
          "verify",
          [](const StreamerObject& self, std::uint32_t pass) {
            const Here here = caller();
            const auto streamer = self.get();
            const WeightsProof proof = unlocked([&] { return streamer->verify({pass}, here); });
            return py::make_tuple(proof.proven(), proof.text);
          },
          py::arg("pass_"), "(whether the order of the ops of this pass is proven, the text of the proof).")
      .def("predict", predict, py::arg("pass_"), py::arg("steps") = 4)
      .def("report", report_of)
      .def(
          "sync",
          [](const StreamerObject& self) {
            const Here here = caller();
            const auto streamer = self.get();
            unlocked([&] { streamer->sync(here); });
          },
          "Waits for the loads that were issued.")
      .def_property_readonly("device", [](const StreamerObject& self) { return self.device; })
      .def_property_readonly("closed", [](const StreamerObject& self) { return !self.handle; })
      .def("close", &StreamerObject::close, "Waits for the loads and gives the memory back.");
}

}  // namespace slip::python
