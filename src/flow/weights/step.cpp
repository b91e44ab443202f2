#include "flow/weights/step.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "flow/weights/arena.hpp"

namespace slip::flow {
namespace {

// Made once: a Name looks up its text, and that allocates.
const Name kInputName("input"), kOutputName("output");

Buffer alloc_some(const Device& device, std::uint64_t bytes, Name name) {
  return bytes > 0 ? device.alloc(bytes, MemoryKind::kDevice, name) : Buffer();
}

}  // namespace

WeightsMemory::WeightsMemory(const Device& device, const WeightsPlan& plan)
    : resident(alloc_some(device, plan.resident_bytes, "resident weights")),
      ring(alloc_some(device, plan.ring_bytes, "ring")),
      slots(alloc_some(device, plan.slot_bytes, "compressed weights")),
      activations(alloc_some(device, plan.activation_bytes, "activations")) {}

Steps::Steps(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightsMemory& memory,
             GroupLoader& loader)
    : graph_(graph),
      plan_(plan),
      loader_(loader),
      compute_(device.stream("compute", StreamFlags::kNonBlocking)),
      table_(make_pass_table(plan, memory.ring, graph.ops().size())),
      loads_(device, memory.ring, loader, nullptr),
      host_{.inputs = device.stream("inputs", StreamFlags::kNonBlocking),
            .outputs = device.stream("outputs", StreamFlags::kNonBlocking)} {
  place(memory);
  prepare_launches(memory);
  loads_.begin(table_, table_);
}

void Steps::place(const WeightsMemory& memory) {
  values_.resize(graph_.values().size());
  const std::vector<bool> placed = placed_values(graph_);
  for (std::uint32_t i = 0; i < values_.size(); ++i) {
    if (placed[i]) values_[i].range = memory.activations.slice(plan_.value_offsets[i], graph_.values()[i].bytes);
  }
}

void Steps::prepare_launches(const WeightsMemory& memory) {
  const WeightIndex index(graph_, plan_);
  for (std::uint32_t i = 0; i < graph_.ops().size(); ++i) {
    const GraphOp& op = graph_.ops()[i];
    Launch launch;
    launch.name = op.name;
    launch.cost = op.cost;
    for (const ValueBytes& read : op.reads) {
      PlacedValue& value = values_[read.value.index];
      const bool weight = graph_[read.value].role == ValueRole::kWeight;
      launch.reads.push_back(weight ? weight_range(index, memory, read, i)
                                    : value.range.slice(read.offset, read.bytes));
      value.last_reader = i;
    }
    for (const ValueBytes& write : op.writes) {
      PlacedValue& value = values_[write.value.index];
      launch.writes.push_back(value.range.slice(write.offset, write.bytes));
      if (value.first_writer == kNoOp) value.first_writer = i;
    }
    launches_.push_back(std::move(launch));
  }
}

Steps::WeightIndex::WeightIndex(const Graph& graph, const WeightsPlan& plan)
    : groups_of(graph.values().size()), loads_of(plan.groups.size()) {
  for (std::uint32_t i = 0; i < plan.groups.size(); ++i) {
    for (const WeightGroup::Part& part : plan.groups[i].parts) {
      std::vector<std::uint32_t>& groups = groups_of[part.bytes.value.index];
      if (groups.empty() || groups.back() != i) groups.push_back(i);
    }
  }
  for (std::uint32_t k = 0; k < plan.loads.size(); ++k) loads_of[plan.loads[k].group].push_back(k);
}

Range Steps::weight_range(const WeightIndex& index, const WeightsMemory& memory, const ValueBytes& bytes,
                          std::uint32_t op) const {
  for (const std::uint32_t i : index.groups_of[bytes.value.index]) {
    const WeightGroup& group = plan_.groups[i];
    const WeightGroup::Part* part = part_of(group, bytes);
    if (!part) continue;
    const std::uint64_t within = part->offset + bytes.offset - part->bytes.offset;
    if (group.in_place()) return memory.resident.slice(group.offset + within, bytes.bytes);
    for (const std::uint32_t k : index.loads_of[i]) {
      const WeightLoad& load = plan_.loads[k];
      if (op < load.first_op || load.last_op < op) continue;
      const auto number = static_cast<std::size_t>(part - group.parts.data());
      const Range to = table_.loads[k].to;
      return to.slice(within + loader_.shift(to, i, number), bytes.bytes);
    }
  }
  throw Error(ErrorCode::kInvalidValue,
              fmt::format("the plan has no place for bytes {}..{} of weight '{}', which op '{}' reads: it was made for "
                          "another graph",
                          bytes.offset, bytes.offset + bytes.bytes, graph_[bytes.value].name, graph_.ops()[op].name));
}

void Steps::issue(std::span<const HostValue> inputs, std::span<const HostValue> outputs) {
  std::uint32_t inputs_end = kNoOp;     // the last op that reads an input
  std::uint32_t outputs_begin = kNoOp;  // the first op that writes an output
  for (const HostValue& input : inputs) {
    const std::uint32_t reader = values_[input.value.index].last_reader;
    if (reader != kNoOp && (inputs_end == kNoOp || reader > inputs_end)) inputs_end = reader;
  }
  for (const HostValue& output : outputs)
    outputs_begin = std::min(outputs_begin, values_[output.value.index].first_writer);
  if (!inputs.empty()) {
    host_.inputs.wait(host_.inputs_used);
    for (const HostValue& input : inputs) host_.inputs.copy(range_of(input.value), input.host, kInputName);
    host_.inputs.record(host_.inputs_taken);
    compute_.wait(host_.inputs_taken);
  }
  for (std::uint32_t i = 0; i < launches_.size(); ++i) {
    Launch& launch = launches_[i];
    loads_.before_use(i, compute_);
    if (i == outputs_begin) compute_.wait(host_.outputs_there);
    const GraphOp& op = graph_.ops()[i];
    compute_.launch(*op.kernel,
                    {.reads = launch.reads, .writes = launch.writes, .scalars = op.scalars, .name = launch.name},
                    launch.cost);
    loads_.after_use(i, compute_);
    if (i == inputs_end) compute_.record(host_.inputs_used);
  }
  if (!outputs.empty()) {
    compute_.record(host_.outputs_made);
    host_.outputs.wait(host_.outputs_made);
    for (const HostValue& output : outputs) host_.outputs.copy(output.host, range_of(output.value), kOutputName);
    host_.outputs.record(host_.outputs_there);
  }
  loads_.begin(table_, table_);
  loads_.issue_ahead();
}

std::vector<Name> load_names(const std::vector<WeightGroup>& groups, std::span<const GraphValue> values) {
  std::vector<Name> names;
  for (const WeightGroup& group : groups) {
    const ValueBytes& first = group.parts.front().bytes;
    const GraphValue& weight = values[first.value.index];
    const std::string part = first.bytes == weight.bytes ? "" : fmt::format("+{}", first.offset);
    const std::string more = group.parts.size() > 1 ? fmt::format(" and {} more", group.parts.size() - 1) : "";
    names.emplace_back(fmt::format("load {}{}{}", weight.name, part, more));
  }
  return names;
}

// Steps are found by counting: each kernel of the compute stream is an op of the graph, in order.
std::vector<TraceSpan> kernel_spans(const TraceData& trace, std::uint64_t stream) {
  std::vector<TraceSpan> spans = trace.spans();
  std::erase_if(spans, [&](const TraceSpan& span) { return span.stream != stream || span.kind != OpKind::kKernel; });
  const auto missing = std::ranges::count_if(spans, [](const TraceSpan& span) { return !span.run; });
  if (missing > 0)
    base::fail(ErrorCode::kInvalidValue, {}, "the trace does not say when {} of {} ops ran: the steps cannot be found",
               missing, spans.size());
  std::ranges::sort(spans, {}, &TraceSpan::position);
  return spans;
}

StepTimes step_times(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops) {
  const std::vector<TraceSpan> spans = kernel_spans(trace, compute_stream);
  StepTimes times;
  times.steps = ops > 0 ? spans.size() / ops : 0;
  if (times.steps == 0) return times;
  const auto end_of = [&](std::size_t step) { return spans[(step + 1) * ops - 1].ended; };
  Picos began = spans.front().started;
  for (const TraceSpan& span : spans) began = std::min(began, span.queued > 0 ? span.queued : span.started);
  times.first = end_of(0) - began;
  if (times.steps < 2) return times;
  std::vector<std::pair<Picos, std::size_t>> steady;  // all but the first: the median, with its step
  for (std::size_t step = 1; step < times.steps; ++step) steady.emplace_back(end_of(step) - end_of(step - 1), step);
  std::ranges::sort(steady);
  const auto [time, step] = steady[(steady.size() - 1) / 2];
  times.steady = time;
  times.idle = time;
  for (std::size_t i = step * ops; i < (step + 1) * ops; ++i) times.idle -= spans[i].ended - spans[i].started;
  times.idle = std::max<Picos>(times.idle, 0);
  return times;
}

}  // namespace slip::flow
