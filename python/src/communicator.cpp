// Communicator: collectives and messages between ranks, as ops of a stream.
#include <pybind11/chrono.h>

#include "objects.hpp"

namespace slip::python {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  if (!(seconds > 0 && seconds < 1e9)) throw py::value_error("a timeout is a positive number of seconds");
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

CommunicatorOptions options_of(double timeout, double init_timeout, const std::string& name) {
  return {.timeout = milliseconds(timeout), .init_timeout = milliseconds(init_timeout), .name = name};
}

// The element type of a call: `dtype` as safetensors spells it ("BF16"), or that of the buffer.
DataType type_of(const py::object& dtype, const RangeObject& range) {
  const std::string name =
      py::module_::import("slipstream._dtypes")
          .attr("data_type_of")(dtype.is_none() ? py::object(py::str(range.buffer->format.code)) : dtype)
          .cast<std::string>();
  const std::optional<DataType> type = data_type_of(name);
  if (!type) throw py::value_error("no element type '" + name + "' in collectives");
  return *type;
}

ReduceOp reduce_op(const std::string& name) {
  const std::optional<ReduceOp> op = reduce_op_of(name);
  if (!op || *op == ReduceOp::kPreMulSum)
    throw py::value_error("op is '" + name + "'; it must be sum, prod, min, max or avg");
  return *op;
}

struct CommunicatorObject {
  // Shared with the calls that run without the GIL: meanwhile another thread may close this object.
  std::optional<std::shared_ptr<Communicator>> handle;
  std::shared_ptr<DeviceObject> device;

  ~CommunicatorObject() { retire(handle); }
  const std::shared_ptr<Communicator>& get() {
    if (!handle) throw Error(ErrorCode::kInvalidHandle, "the communicator was closed", caller());
    return *handle;
  }
  // Calls `use` without the GIL. If the object is closed meanwhile, this thread destroys the communicator, still
  // without the GIL: its destructor waits for work that may need the GIL.
  template <class Use>
  void without_gil(const Use& use) {
    unlocked([held = get(), &use]() mutable {
      const std::shared_ptr<Communicator> own = std::move(held);
      use(*own);
    });
  }
  // Issues a call. The op does not keep its buffers alive: freeing a buffer waits for the device's work.
  template <class Issue>
  void call(const StreamObject& stream, const Issue& issue) {
    const Here here = caller();
    const StreamRef ref = stream.get();
    without_gil([&](Communicator& comm) { issue(comm, ref, here); });
  }
};

std::shared_ptr<CommunicatorObject> object_of(Communicator made, std::shared_ptr<DeviceObject> device) {
  auto object = std::make_shared<CommunicatorObject>();
  object->handle = std::make_shared<Communicator>(std::move(made));
  object->device = std::move(device);
  return object;
}

std::shared_ptr<CommunicatorObject> init(const std::shared_ptr<DeviceObject>& device, std::optional<UniqueId> id,
                                         int rank, int nranks, double timeout, double init_timeout,
                                         const std::string& name) {
  const Here here = caller();
  const Device handle = device->get();
  const CommunicatorOptions options = options_of(timeout, init_timeout, name);
  return object_of(unlocked([&] {
                     return id ? Communicator::init(*id, nranks, rank, handle, options, here)
                               : Communicator::init(handle, options, here);
                   }),
                   device);
}

std::vector<std::shared_ptr<CommunicatorObject>> init_all(const std::vector<std::shared_ptr<DeviceObject>>& devices,
                                                          double timeout, double init_timeout,
                                                          const std::string& name) {
  const Here here = caller();
  std::vector<Device> handles;
  for (const auto& device : devices) handles.push_back(device->get());
  const CommunicatorOptions options = options_of(timeout, init_timeout, name);
  std::vector<Communicator> made = unlocked([&] { return Communicator::init_all(handles, options, here); });
  std::vector<std::shared_ptr<CommunicatorObject>> objects;
  for (std::size_t i = 0; i < made.size(); ++i) objects.push_back(object_of(std::move(made[i]), devices[i]));
  return objects;
}

// Sends and receives inside `with group():` begin together. If the block raises, the group is destroyed without end():
// nothing is sent, and its communicators fail on all ranks.
struct GroupObject {
  std::unique_ptr<Group> group;
  void exit(bool failed) {
    if (!group) return;
    unlocked([&, ended = std::move(group)]() mutable {
      if (!failed) ended->end();
      ended.reset();
    });
  }
};

void bind_ids(py::module_& module) {
  py::class_<UniqueId>(module, "UniqueId",
                       "Names a new communicator, with the address at which its ranks find each other.")
      .def_static(
          "create", [] { return unlocked([] { return UniqueId::create(); }); },
          "One process creates it and passes its text to the others.")
      .def_static(
          "parse",
          [](const std::string& text, const std::string& job) {
            const Here here = caller();
            return unlocked([&] { return UniqueId::parse(text, job, here); });
          },
          py::arg("text"), py::arg("job") = "")
      .def("__str__", [](const UniqueId& self) { return self.text(); })
      .def("__eq__", [](const UniqueId& self, const UniqueId& other) { return self == other; })
      .def(py::pickle([](const UniqueId& self) { return self.text(); },
                      [](const std::string& text) { return UniqueId::parse(text); }));
  py::class_<GroupObject>(module, "Group", "Sends and receives of this thread that begin together.")
      .def("__enter__", [](GroupObject& self) { self.group = std::make_unique<Group>(caller()); })
      .def("__exit__", [](GroupObject& self, const py::object& type, const py::args&) { self.exit(!type.is_none()); });
  module.def(
      "group", [] { return GroupObject{}; }, "`with group():` sends and receives inside begin together.");
}

using Bound = py::class_<CommunicatorObject, std::shared_ptr<CommunicatorObject>>;

void bind_reductions(Bound& bound) {
  bound
      .def(
          "all_reduce",
          [](CommunicatorObject& self, py::handle to, py::handle source, const StreamObject& stream,
             const std::string& op, const py::object& dtype) {
            const RangeObject out = to_range(to), in = to_range(source);
            const DataType type = type_of(dtype, in);
            const ReduceOp how = reduce_op(op);
            self.call(stream, [&](Communicator& comm, StreamRef ref, Here here) {
              comm.all_reduce(out.range, in.range, type, how, ref, here);
            });
          },
          py::arg("to"), py::arg("source"), py::arg("stream"), py::arg("op") = "sum", py::arg("dtype") = py::none())
      .def(
          "reduce_scatter",
          [](CommunicatorObject& self, py::handle to, py::handle source, const StreamObject& stream,
             const std::string& op, const py::object& dtype) {
            const RangeObject out = to_range(to), in = to_range(source);
            const DataType type = type_of(dtype, in);
            const ReduceOp how = reduce_op(op);
            self.call(stream, [&](Communicator& comm, StreamRef ref, Here here) {
              comm.reduce_scatter(out.range, in.range, type, how, ref, here);
            });
          },
          py::arg("to"), py::arg("source"), py::arg("stream"), py::arg("op") = "sum", py::arg("dtype") = py::none(),
          "`source` has nranks times the bytes of `to`.");
}

void bind_data_movement(Bound& bound) {
  bound
      .def(
          "all_gather",
          [](CommunicatorObject& self, py::handle to, py::handle source, const StreamObject& stream) {
            const RangeObject out = to_range(to), in = to_range(source);
            self.call(stream, [&](Communicator& comm, StreamRef ref, Here here) {
              comm.all_gather(out.range, in.range, ref, here);
            });
          },
          py::arg("to"), py::arg("source"), py::arg("stream"), "`to` has nranks times the bytes of `source`.")
      .def(
          "broadcast",
          [](CommunicatorObject& self, py::handle to, py::handle source, int root, const StreamObject& stream) {
            const RangeObject out = to_range(to), in = to_range(source);
            self.call(stream, [&](Communicator& comm, StreamRef ref, Here here) {
              comm.broadcast(out.range, in.range, root, ref, here);
            });
          },
          py::arg("to"), py::arg("source"), py::arg("root"), py::arg("stream"))
      .def(
          "all_to_all",
          [](CommunicatorObject& self, py::handle to, py::handle source, const StreamObject& stream) {
            const RangeObject out = to_range(to), in = to_range(source);
            self.call(stream, [&](Communicator& comm, StreamRef ref, Here here) {
              comm.all_to_all(out.range, in.range, ref, here);
            });
          },
          py::arg("to"), py::arg("source"), py::arg("stream"))
      .def(
          "barrier",
          [](CommunicatorObject& self, const StreamObject& stream) {
            self.call(stream, [](Communicator& comm, StreamRef ref, Here here) { comm.barrier(ref, here); });
          },
          py::arg("stream"))
      .def(
          "send",
          [](CommunicatorObject& self, py::handle source, int peer, const StreamObject& stream) {
            const RangeObject in = to_range(source);
            self.call(stream,
                      [&](Communicator& comm, StreamRef ref, Here here) { comm.send(in.range, peer, ref, here); });
          },
          py::arg("source"), py::arg("peer"), py::arg("stream"))
      .def(
          "recv",
          [](CommunicatorObject& self, py::handle to, int peer, const StreamObject& stream) {
            const RangeObject out = to_range(to);
            self.call(stream,
                      [&](Communicator& comm, StreamRef ref, Here here) { comm.recv(out.range, peer, ref, here); });
          },
          py::arg("to"), py::arg("peer"), py::arg("stream"));
}

}  // namespace

void bind_communicator(py::module_& module) {
  bind_ids(module);
  Bound bound(
      module, "Communicator",
      "A group of ranks, each with one device. All ranks make the same calls in the same order; a call is an op "
      "of a stream and returns once it is queued.");
  bound
      .def(py::init(&init), py::arg("device"), py::arg("id") = py::none(), py::arg("rank") = 0, py::arg("nranks") = 1,
           py::kw_only(), py::arg("timeout") = 600.0, py::arg("init_timeout") = 60.0, py::arg("name") = "",
           "Joins; returns when all ranks have joined. Without an id, rank and size come from the launcher.")
      .def_static("init_all", &init_all, py::arg("devices"), py::kw_only(), py::arg("timeout") = 600.0,
                  py::arg("init_timeout") = 60.0, py::arg("name") = "", "All ranks in this process, one per device.")
      .def_property_readonly("rank", [](CommunicatorObject& self) { return self.get()->rank(); })
      .def_property_readonly("nranks", [](CommunicatorObject& self) { return self.get()->nranks(); })
      .def_property_readonly("device", [](const CommunicatorObject& self) { return self.device; })
      .def(
          "finalize",
          [](CommunicatorObject& self) {
            const Here here = caller();
            self.without_gil([&](Communicator& comm) { comm.finalize(here); });
          },
          "Waits until all ranks have called it, and compares their calls.")
      .def("abort", [](CommunicatorObject& self) { self.without_gil([](Communicator& comm) { comm.abort(); }); })
      .def(
          "close", [](CommunicatorObject& self) { retire(self.handle); }, "Waits for this rank's calls.")
      .def("__enter__", [](const std::shared_ptr<CommunicatorObject>& self) { return self; })
      .def("__exit__", [](CommunicatorObject& self, const py::object& type, const py::args&) {
        if (self.handle && type.is_none()) self.without_gil([](Communicator& comm) { comm.finalize(); });
        else if (self.handle) self.without_gil([](Communicator& comm) { comm.abort(); });
        retire(self.handle);
      });
  bind_reductions(bound);
  bind_data_movement(bound);
}

}  // namespace slip::python
