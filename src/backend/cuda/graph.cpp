// OpEnqueuer: a plan as a CUDA graph. The plan's ops are captured once, in private streams, and then launched as one
// graph.
#include <deque>

#include "backend/cuda/check.hpp"
#include "backend/cuda/op_enqueuer.hpp"

namespace slip::backend {

struct CompiledPlan {
  struct HostNode {
    CompiledPlan* plan;
    std::function<void()> function;
    Name name;
    Here here;
  };
  cudaGraphExec_t graph = nullptr;
  std::deque<HostNode> hosts;  // the user data of the graph's host nodes points to these
  // The launch that was submitted last: a host function that throws fails this stream, at this position. Launches do
  // not overlap on the GPU (docs/semantics.md, rule 100), but an earlier one may still run: its failure is then
  // reported there, too.
  std::atomic<runtime::StreamState*> stream{nullptr};
  std::atomic<std::uint64_t> position{0};
  EventUse launched;  // recorded after the launch, if the plan has host functions
  // The compilation that this one replaced, while its last launch may still call its host functions. A launch does not
  // wait for it: the work that it waits for may be enqueued by the same thread later.
  std::shared_ptr<void> replaced;

  // Drops the replaced compilation if its last launch has ended. Then its own predecessors have ended, too, because
  // launches do not overlap.
  void drop_ended() {
    const auto* const before = static_cast<const CompiledPlan*>(replaced.get());
    if (!before) return;
    if (!before->launched || cudaEventQuery(before->launched.native()) == cudaSuccess) replaced.reset();
    else static_cast<void>(cudaGetLastError());  // not ready is no error
  }

  ~CompiledPlan() {
    // The last launch may still call a host function of this plan.
    if (launched) cudaEventSynchronize(launched.native());
    if (graph) cudaGraphExecDestroy(graph);  // the driver lets running launches finish
  }
};

namespace {

void CUDART_CB call_again(void* data) {
  const auto* node = static_cast<CompiledPlan::HostNode*>(data);
  run_host_function(node->function, *node->plan->stream.load(std::memory_order_acquire), node->name, node->here,
                    node->plan->position.load());
}

// Owns the streams and events of a capture, and ends the capture if it failed.
struct Scratch : base::NoCopy {
  explicit Scratch(int device) : gpu(device) {}
  ~Scratch() {
    if (capturing) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(streams[0], &broken);
      if (broken) cudaGraphDestroy(broken);
      static_cast<void>(cudaGetLastError());
    }
    for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
    for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
  void open_streams(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i)
      check(cudaStreamCreateWithFlags(&streams.emplace_back(), cudaStreamNonBlocking), "cudaStreamCreateWithFlags",
            gpu);
  }
  cudaEvent_t record(std::uint32_t stream) {
    check(cudaEventCreateWithFlags(&events.emplace_back(), cudaEventDisableTiming), "cudaEventCreateWithFlags", gpu);
    check(cudaEventRecord(events.back(), streams[stream]), "cudaEventRecord", gpu);
    return events.back();
  }
  void wait(std::uint32_t stream, cudaEvent_t event) {
    check(cudaStreamWaitEvent(streams[stream], event, 0), "cudaStreamWaitEvent", gpu);
  }
  const int gpu;
  bool capturing = false;
  std::vector<cudaStream_t> streams;
  std::vector<cudaEvent_t> events;
};

}  // namespace

std::shared_ptr<CompiledPlan> OpEnqueuer::compile(const runtime::PlanOps& plan) const {
  auto compiled = std::make_shared<CompiledPlan>();
  Scratch scratch(gpu_);
  scratch.open_streams(plan.streams);
  // Relaxed mode: other threads may call CUDA meanwhile.
  check(cudaStreamBeginCapture(scratch.streams[0], cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture", gpu_);
  scratch.capturing = true;
  const cudaEvent_t begin = scratch.record(0);
  for (std::uint32_t i = 1; i < plan.streams; ++i) scratch.wait(i, begin);
  std::vector<bool> waited(plan.nodes.size());
  for (const runtime::PlanOps::Node& node : plan.nodes) {
    for (const std::uint32_t before : node.waits) {
      if (plan.nodes[before].stream != node.stream) waited[before] = true;
    }
  }
  std::vector<cudaEvent_t> ends(plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const runtime::PlanOps::Node& node = plan.nodes[i];
    for (const std::uint32_t before : node.waits) {
      if (ends[before] && plan.nodes[before].stream != node.stream) scratch.wait(node.stream, ends[before]);
    }
    if (node.op.kind == OpKind::kHost) {
      compiled->hosts.push_back({compiled.get(), *node.op.host, node.op.name, node.op.here});
      check(cudaLaunchHostFunc(scratch.streams[node.stream], call_again, &compiled->hosts.back()), "cudaLaunchHostFunc",
            gpu_, node.op.name.text(), node.op.here);
    } else {
      put(scratch.streams[node.stream], node.op);
    }
    if (waited[i]) ends[i] = scratch.record(node.stream);
  }
  for (std::uint32_t i = 1; i < plan.streams; ++i) scratch.wait(0, scratch.record(i));
  cudaGraph_t graph = nullptr;
  scratch.capturing = false;
  check(cudaStreamEndCapture(scratch.streams[0], &graph), "cudaStreamEndCapture", gpu_);
  const cudaError_t status = cudaGraphInstantiate(&compiled->graph, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate", gpu_);
  return compiled;
}

void OpEnqueuer::launch_plan(CudaStream& stream, const Op& op, std::uint64_t position) {
  std::shared_ptr<void>& kept = *op.plan->compiled;
  if (!op.plan->nodes.empty()) {
    std::shared_ptr<CompiledPlan> compiled = compile(*op.plan);
    compiled->replaced = std::move(kept);
    kept = std::move(compiled);
  }
  auto* plan = static_cast<CompiledPlan*>(kept.get());
  plan->drop_ended();
  plan->stream.store(&stream, std::memory_order_release);
  plan->position.store(position, std::memory_order_release);
  checked(cudaGraphLaunch(plan->graph, stream.handle), "cudaGraphLaunch", op);
  if (plan->hosts.empty()) return;
  plan->launched = EventUse(events_.take(false));
  checked(cudaEventRecord(plan->launched.native(), stream.handle), "cudaEventRecord", op);
}

}  // namespace slip::backend
