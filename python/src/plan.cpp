#include "plan.hpp"

#include <algorithm>
#include <map>

#include "callbacks.hpp"
#include "flow/predicted_trace.hpp"
#include "runtime/observers.hpp"
#include "trace.hpp"

namespace slip::python {
namespace {

// Buffers of the captures in progress. Under the GIL.
struct Captures {
  int open = 0;
  std::map<std::uint64_t, std::shared_ptr<BufferObject>> buffers;
};
Captures& captures() {
  static auto* const kCaptures = new Captures;
  return *kCaptures;
}

std::vector<std::shared_ptr<BufferObject>> buffers_of(const Plan& plan) {
  std::map<std::uint64_t, std::shared_ptr<BufferObject>> found;
  for (const PlanNode& node : plan.nodes()) {
    for (const auto* list : {&node.reads, &node.writes}) {
      for (const Range& range : *list) {
        if (auto buffer = find_buffer(range.id)) found.emplace(range.id, std::move(buffer));
      }
    }
  }
  std::vector<std::shared_ptr<BufferObject>> result;
  for (auto& [id, buffer] : found) result.push_back(std::move(buffer));
  return result;
}

// `with stream.capture() as plan`: work issued inside becomes the plan.
struct CaptureObject {
  std::shared_ptr<StreamObject> stream;
  std::shared_ptr<PlanObject> plan = std::make_shared<PlanObject>();

  std::shared_ptr<PlanObject> enter() {
    const Here here = caller();
    const StreamRef ref = stream->get();
    unlocked([&] { ref.begin_capture(here); });
    ++captures().open;
    return plan;
  }

  void exit(const py::object& raised) {
    const Here here = caller();
    std::optional<Plan> made;
    std::exception_ptr error;
    try {
      const StreamRef ref = stream->get();
      unlocked([&] {
        try {
          made = ref.end_capture(here);
        } catch (...) {
          error = std::current_exception();
        }
      });
    } catch (...) {
      error = std::current_exception();  // the stream was closed meanwhile
    }
    if (made) {
      plan->plan = std::move(made);
      plan->buffers = buffers_of(*plan->plan);
      plan->broken_off = !raised.is_none();
    }
    if (--captures().open == 0) {
      const auto buffers = std::exchange(captures().buffers, {});  // destroyed here: it may run Python code
    }
    if (error && raised.is_none()) std::rethrow_exception(error);
  }
};

// The bindings of a launch. Throws if the plan does not use a buffer, or has no such scalar of this type. The indices
// of scalars are those of Python: in the library, index 0 is the Call itself.
Bindings bindings_of(const PlanObject& self, const py::dict& buffers, const py::dict& scalars,
                     std::vector<RangeObject>& kept) {
  const Plan& plan = *self.plan;
  Bindings bindings;
  for (const auto& [planned, actual] : buffers) {
    kept.push_back(to_range(planned));
    if (std::find(self.buffers.begin(), self.buffers.end(), kept.back().buffer) == self.buffers.end())
      throw py::value_error("no op of the plan uses buffer '" + kept.back().buffer->name + "'");
    kept.push_back(to_range(actual));
    bindings.buffer(kept[kept.size() - 2].range, kept.back().range);
  }
  for (const auto& [key, value] : scalars) {
    const auto [op, index] = key.cast<std::pair<std::string, std::size_t>>();
    bool known = false;
    for (const PlanNode& node : plan.nodes()) {
      const Call* const call = node.name.text() == op ? call_of(node) : nullptr;
      if (!call || index >= call->scalars()) continue;
      known = true;
      if (call->real(index) != static_cast<bool>(PyFloat_Check(value.ptr())))
        throw py::type_error("scalar " + std::to_string(index) + " of '" + op + "' was captured as " +
                             (call->real(index) ? "a float" : "an int"));
    }
    if (!known) throw py::value_error("the plan has no op '" + op + "' with a scalar " + std::to_string(index));
    const Scalar scalar =
        PyFloat_Check(value.ptr()) ? Scalar(value.cast<double>()) : Scalar(value.cast<std::int64_t>());
    bindings.scalar(Name(op), index + 1, scalar);
  }
  return bindings;
}

void launch_plan(PlanObject& self, const StreamObject& stream, const py::dict& buffers, const py::dict& scalars) {
  const Here here = caller();
  Plan& plan = self.get();
  const StreamRef ref = stream.get();
  std::vector<RangeObject> kept;
  const Bindings bindings = bindings_of(self, buffers, scalars, kept);
  const DeviceOptions& options = stream.device->get().options();
  std::vector<Call*> calls;  // a reference for each op of this launch
  if (options.run_functions) {
    for (const PlanNode& node : plan.nodes()) {
      if (Call* const call = call_of(node)) calls.push_back(call);
    }
  }
  for (Call* call : calls) call->retain();
  std::exception_ptr refused;
  unlocked([&] {
    try {
      ref.launch(plan, bindings, here);
    } catch (...) {
      refused = std::current_exception();
    }
  });
  if (!refused) return;
  if (!options.launch_blocking) {  // as in Stream.launch: a refused launch issued nothing
    for (Call* call : calls) call->release();
  }
  std::rethrow_exception(refused);
}

py::dict node_of(const Plan& plan, const PlanNode& node) {
  py::dict result;
  result["stream"] = node.stream;
  result["stream_name"] = std::string(plan.stream_name(node.stream).text());
  result["kind"] = op_kind_name(node.kind);
  result["engine"] = engine_name(node.engine);
  result["name"] = std::string(node.name.text());
  result["file"] = node.here.file;
  result["line"] = node.here.line;
  result["waits"] = node.waits;
  result["opaque"] = node.opaque;
  return result;
}

py::list waits_of(const std::vector<Verification::Wait>& waits) {
  py::list result;
  for (const Verification::Wait& each : waits) result.append(py::make_tuple(each.op, each.other));
  return result;
}

py::dict verify_plan(PlanObject& self) {
  const Plan& plan = self.get();
  const auto [found, text] = unlocked([&] {
    Verification verification = verify(plan);
    std::string words = verification.text(plan);
    return std::pair(std::move(verification), std::move(words));
  });
  py::list races;
  for (const Verification::Race& race : found.races) {
    py::dict each;
    each["first"] = race.first;
    each["second"] = race.second;
    each["first_writes"] = race.first_writes;
    each["second_writes"] = race.second_writes;
    each["buffer"] = std::string(race.buffer);
    each["offset"] = race.offset;
    each["bytes"] = race.bytes;
    races.append(each);
  }
  py::dict result;
  result["verdict"] = verdict_name(found.verdict);
  result["races"] = races;
  result["missing"] = waits_of(found.missing);
  result["superfluous"] = waits_of(found.superfluous);
  result["cycle"] = found.cycle;
  result["unknown"] = found.unknown;
  result["text"] = text;
  return result;
}

// The plan on a simulated device, with memory of the same kinds and sizes; no function runs and no byte is touched.
struct Simulation {
  flow::PredictedTrace trace{true};
  runtime::PrivateScope scope{&trace};
  Device device;
  std::map<std::uint64_t, Buffer> memory;
  Plan plan;

  Simulation(const Plan& original, const std::map<std::uint64_t, std::pair<MemoryKind, std::size_t>>& buffers,
             const std::string& name, Here here)
      : device(Device::open(name, {.run_functions = false}, here)) {
    if (!device.info().virtual_time)
      throw Error(ErrorCode::kInvalidDevice, "a plan is predicted on a sim device, not on '" + name + "'", here);
    for (const auto& [id, kind] : buffers) memory.emplace(id, device.alloc(kind.second, kind.first, {}, here));
    for (PlanNode node : original.nodes()) {
      if (node.exchange) throw Error(ErrorCode::kUnsupported, "a plan with collectives cannot be predicted", here);
      for (auto* list : {&node.reads, &node.writes}) {
        for (Range& range : *list) {
          const auto found = memory.find(range.id);
          if (found == memory.end()) throw Error(ErrorCode::kInvalidHandle, "a buffer of the plan was freed", here);
          range = found->second.slice(range.offset, range.bytes);
        }
      }
      plan.add(std::move(node));
    }
  }

  Picos run(Here here) {
    const Stream stream = device.stream(Name("plan"), StreamFlags::kNonBlocking, 0, here);
    stream.launch(plan, here);
    stream.sync(here);
    return figures(trace.data().spans()).total;
  }
};

py::tuple predict_plan(PlanObject& self, const std::string& name) {
  const Here here = caller();
  const Plan& plan = self.get();
  std::map<std::uint64_t, std::pair<MemoryKind, std::size_t>> buffers;
  for (const auto& buffer : self.buffers) {
    if (buffer->handle) buffers[buffer->id] = {buffer->handle->kind(), buffer->bytes};
  }
  auto trace = std::make_shared<TraceData>();
  const Picos time = unlocked([&] {
    Simulation simulation(plan, buffers, name, here);
    const Picos total = simulation.run(here);
    *trace = simulation.trace.data();
    return total;
  });
  return py::make_tuple(time, std::make_shared<TraceObject>(TraceObject{trace}));
}

}  // namespace

CaptureRefs::CaptureRefs(const StreamRef& stream, const std::vector<RangeObject>& reads,
                         const std::vector<RangeObject>& writes) {
  if (captures().open == 0 || !stream.capturing()) return;
  for (const auto* list : {&reads, &writes}) {
    for (const RangeObject& each : *list) captures().buffers.emplace(each.buffer->id, each.buffer);
  }
}

PlanObject::~PlanObject() {
  if (!plan) return;
  std::vector<Call*> calls;
  for (const PlanNode& node : plan->nodes()) {
    if (Call* const call = call_of(node)) calls.push_back(call);
  }
  retire(plan);
  for (Call* call : calls) call->release();
}

Plan& PlanObject::get() {
  if (!plan) throw Error(ErrorCode::kInvalidHandle, "the plan is empty: its capture has not ended", caller());
  if (broken_off)
    throw Error(ErrorCode::kInvalidHandle, "an exception has ended the capture: capture the plan again", caller());
  return *plan;
}

void bind_plan(py::module_& module) {
  py::class_<PlanObject, std::shared_ptr<PlanObject>>(
      module, "Plan", "Ops of several streams and the waits between them, as data. Stream.capture() makes one.")
      .def("launch", launch_plan, py::arg("stream"), py::kw_only(), py::arg("buffers") = py::dict(),
           py::arg("scalars") = py::dict(),
           "Runs the plan as one op of the stream. `buffers` maps captured buffers to others, `scalars` maps "
           "(op name, index) to a value of the same type.")
      .def(
          "describe", [](PlanObject& self) { return self.get().describe(); }, "One line per op, with its waits.")
      .def("_nodes",
           [](PlanObject& self) {
             py::list nodes;
             for (const PlanNode& node : self.get().nodes()) nodes.append(node_of(self.get(), node));
             return nodes;
           })
      .def_property_readonly("streams", [](PlanObject& self) { return self.get().streams(); })
      .def_property_readonly("buffers", [](const PlanObject& self) { return self.buffers; })
      .def("__len__", [](PlanObject& self) { return self.get().nodes().size(); })
      .def("_verify", verify_plan)
      .def("_predict", predict_plan, py::arg("device"));
  py::class_<CaptureObject>(module, "Capture")
      .def("__enter__", &CaptureObject::enter)
      .def("__exit__", [](CaptureObject& self, const py::object& type, const py::args&) { self.exit(type); });
  module.attr("Stream").attr("capture") = py::cpp_function(
      [](std::shared_ptr<StreamObject> stream) { return CaptureObject{std::move(stream)}; }, py::name("capture"),
      py::is_method(module.attr("Stream")),
      "`with stream.capture() as plan`: work issued inside does not run but becomes the plan. A stream that waits for "
      "an event of this one joins; this one must wait for it before the end.");
}

}  // namespace slip::python
