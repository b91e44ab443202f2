#include "flow/weights/step.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "flow/weights/arena.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip {
namespace {

Buffer alloc_some(const Device& device, std::uint64_t bytes, Name name) {
  return bytes > 0 ? device.alloc(bytes, MemoryKind::kDevice, name) : Buffer();
}

}  // namespace

WeightsMemory::WeightsMemory(const Device& device, const WeightsPlan& plan)
    : resident(alloc_some(device, plan.resident_bytes, "resident weights")),
      ring(alloc_some(device, plan.ring_bytes, "ring")),
      activations(alloc_some(device, plan.activation_bytes, "activations")) {}

Steps::Steps(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightsMemory& memory,
             LoadUnit load, const PartShift& shift)
    : graph_(graph),
      plan_(plan),
      load_unit_(std::move(load)),
      compute_(device.stream("compute", StreamFlags::kNonBlocking)),
      load_(device.stream("loads", StreamFlags::kNonBlocking)),
      inputs_(device.stream("inputs", StreamFlags::kNonBlocking)),
      results_(device.stream("outputs", StreamFlags::kNonBlocking)) {
  for (const GraphOp& op : graph.ops()) costs_.push_back(op.cost);
  prepare(graph, plan, memory, shift);
}

void Steps::prepare(const Graph& graph, const WeightsPlan& plan, const WeightsMemory& memory, const PartShift& shift) {
  values_.resize(graph.values().size());
  const std::vector<bool> placed = placed_values(graph);
  for (std::uint32_t i = 0; i < values_.size(); ++i) {
    if (placed[i]) values_[i] = memory.activations.slice(plan.value_offsets[i], graph.values()[i].bytes);
  }
  for (const WeightLoad& load : plan.loads)
    load_targets_.push_back(memory.ring.slice(load.offset, plan.units[load.unit].bytes + plan.units[load.unit].room));
  while (first_ahead_ < plan.loads.size() &&
         (plan.loads[first_ahead_].after_op == kNoOp || plan.loads[first_ahead_].step_before))
    ++first_ahead_;
  loaded_.resize(plan.loads.size());
  used_.resize(graph.ops().size());
  last_readers_.assign(values_.size(), kNoOp);
  first_writers_.assign(values_.size(), kNoOp);
  std::uint32_t loads = 0;
  const Places places(graph, plan);
  for (std::uint32_t i = 0; i < graph.ops().size(); ++i) {
    const GraphOp& op = graph.ops()[i];
    Launch launch{op.name, op.kernel, {}, {}, 0, false};
    for (const ValueBytes& read : op.reads) {
      const bool weight = graph[read.value].role == ValueRole::kWeight;
      launch.reads.push_back(weight ? weight_range(places, memory, read, i, shift)
                                    : values_[read.value.index].slice(read.offset, read.bytes));
      last_readers_[read.value.index] = i;
    }
    for (const ValueBytes& write : op.writes) {
      launch.writes.push_back(values_[write.value.index].slice(write.offset, write.bytes));
      std::uint32_t& first = first_writers_[write.value.index];
      if (first == kNoOp) first = i;
    }
    while (loads < plan.loads.size() && plan.loads[loads].first_op <= i) ++loads;
    launch.loads = loads;
    launches_.push_back(std::move(launch));
  }
  for (const WeightLoad& load : plan.loads) {
    if (load.after_op != kNoOp) launches_[load.after_op].marks = true;
  }
}

Steps::Places::Places(const Graph& graph, const WeightsPlan& plan)
    : units_of(graph.values().size()), loads_of(plan.units.size()) {
  for (std::uint32_t i = 0; i < plan.units.size(); ++i) {
    for (const WeightUnit::Part& part : plan.units[i].parts) {
      std::vector<std::uint32_t>& units = units_of[part.bytes.value.index];
      if (units.empty() || units.back() != i) units.push_back(i);
    }
  }
  for (std::uint32_t k = 0; k < plan.loads.size(); ++k) loads_of[plan.loads[k].unit].push_back(k);
}

Range Steps::weight_range(const Places& places, const WeightsMemory& memory, const ValueBytes& bytes, std::uint32_t op,
                          const PartShift& shift) const {
  for (const std::uint32_t i : places.units_of[bytes.value.index]) {
    const WeightUnit& unit = plan_.units[i];
    const WeightUnit::Part* part = part_of(unit, bytes);
    if (!part) continue;
    const std::uint64_t within = part->offset + bytes.offset - part->bytes.offset;
    if (unit.resident) return memory.resident.slice(unit.offset + within, bytes.bytes);
    for (const std::uint32_t k : places.loads_of[i]) {
      const WeightLoad& load = plan_.loads[k];
      if (op < load.first_op || load.last_op < op) continue;
      const auto index = static_cast<std::size_t>(part - unit.parts.data());
      const std::uint64_t shifted = shift ? shift(load_targets_[k], i, index) : 0;
      return load_targets_[k].slice(within + shifted, bytes.bytes);
    }
  }
  throw Error(Code::kInvalidValue,
              fmt::format("the plan has no place for bytes {}..{} of weight '{}', which op '{}' reads: it was made for "
                          "another graph",
                          bytes.offset, bytes.offset + bytes.bytes, graph_[bytes.value].name, graph_.ops()[op].name));
}

Range Steps::range_of(Value value) const { return values_[value.index]; }

// Loads of the present step up to this one; each waits for the op that used its place last.
void Steps::issue_loads(std::uint32_t up_to) {
  for (; issued_ < up_to; ++issued_) {
    const WeightLoad& load = plan_.loads[issued_];
    const Event* const used = load.after_op == kNoOp ? nullptr : &used_[load.after_op];
    if (used) load_.wait(*used);
    load_unit_(load_, load_targets_[issued_], load.unit, used);
    load_.record(loaded_[issued_]);
  }
}

void Steps::issue(std::span<const HostValue> inputs, std::span<const HostValue> outputs) {
  std::uint32_t inputs_end = kNoOp,
                outputs_begin = kNoOp;  // the last op that reads an input, the first that makes an output
  for (const HostValue& input : inputs) {
    const std::uint32_t reader = last_readers_[input.value.index];
    if (reader != kNoOp && (inputs_end == kNoOp || reader > inputs_end)) inputs_end = reader;
  }
  for (const HostValue& output : outputs) outputs_begin = std::min(outputs_begin, first_writers_[output.value.index]);
  if (!inputs.empty()) {
    inputs_.wait(inputs_used_);
    for (const HostValue& input : inputs) inputs_.copy(range_of(input.value), input.host, "input");
    inputs_.record(inputs_taken_);
    compute_.wait(inputs_taken_);
  }
  for (std::uint32_t i = 0; i < launches_.size(); ++i) {
    const Launch& launch = launches_[i];
    if (issued_ < launch.loads) issue_loads(launch.loads);
    if (launch.loads > 0 && (i == 0 || launches_[i - 1].loads < launch.loads)) compute_.wait(loaded_[launch.loads - 1]);
    if (i == outputs_begin) compute_.wait(outputs_there_);
    compute_.launch(
        *launch.kernel,
        {.reads = launch.reads, .writes = launch.writes, .scalars = graph_.ops()[i].scalars, .name = launch.name},
        costs_[i]);
    if (launch.marks) compute_.record(used_[i]);
    if (i == inputs_end) compute_.record(inputs_used_);
  }
  if (!outputs.empty()) {
    compute_.record(outputs_made_);
    results_.wait(outputs_made_);
    for (const HostValue& output : outputs) results_.copy(output.host, range_of(output.value), "output");
    results_.record(outputs_there_);
  }
  issued_ = 0;
  issue_loads(first_ahead_);
}

}  // namespace slip
