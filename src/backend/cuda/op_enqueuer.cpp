#include "backend/cuda/op_enqueuer.hpp"

#include <cuda.h>

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/fail.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"

namespace slip::backend {
namespace {

// A host function that is enqueued in a stream. The callback deletes it.
struct HostCall {
  std::function<void()> function;
  runtime::StreamState* stream;
  std::uint32_t device;
  std::uint64_t position;
  Name name;
  Here here;
};

void CUDART_CB call_host_function(void* data) {
  std::unique_ptr<HostCall> call(static_cast<HostCall*>(data));
  const Picos started = base::now_ns() * 1000;
  run_host_function(call->function, *call->stream, call->name, call->here, call->position);
  if (runtime::observed_by(call->stream->audience))
    runtime::notify({.kind = RecordKind::kRun,
                     .engine = Engine::kHost,
                     .device = call->device,
                     .stream = call->stream->last_id,
                     .position = call->position,
                     .started = started,
                     .ended = base::now_ns() * 1000,
                     .name = call->name,
                     .here = call->here},
                    call->stream->audience);
  // The function may own a buffer, and freeing it would call CUDA. A callback may not call CUDA, so with InsideOp the
  // buffer is leaked instead.
  const runtime::InsideOp inside;
  call.reset();
}

}  // namespace

void run_host_function(const std::function<void()>& function, runtime::StreamState& stream, Name name, Here here,
                       std::uint64_t position) {
  const runtime::InsideOp inside;
  const auto fail = [&](const char* why) {
    runtime::fail_stream(stream,
                         runtime::op_failure(ErrorCode::kLaunchFailed, OpKind::kHost, name, here, why, position));
  };
  try {
    function();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("not a std::exception");
  }
}

OpEnqueuer::~OpEnqueuer() {
  if (pool_) cudaMemPoolDestroy(pool_);
  static_cast<void>(cudaGetLastError());  // at exit the driver may already be shut down
}

// A separate memory pool, so that its options do not affect other users in the process.
void OpEnqueuer::make_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, {gpu_}};
  check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate", gpu_);
  const auto set = [this](cudaMemPoolAttr attribute, auto value) {
    check(cudaMemPoolSetAttribute(pool_, attribute, &value), "cudaMemPoolSetAttribute", gpu_);
  };
  const PoolOptions& options = core_.options.pool;
  set(cudaMemPoolAttrReleaseThreshold, static_cast<std::uint64_t>(options.release_threshold));
  set(cudaMemPoolReuseFollowEventDependencies, static_cast<int>(options.follow_event_dependencies));
  set(cudaMemPoolReuseAllowOpportunistic, static_cast<int>(options.opportunistic));
  set(cudaMemPoolReuseAllowInternalDependencies, static_cast<int>(options.internal_dependencies));
}

void OpEnqueuer::checked(cudaError_t status, const char* call, const Op& op) const {
  if (status == cudaSuccess) [[likely]]
    return;
  try {
    raise_cuda(status, call, gpu_, op.name.text(), op.here);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDeviceFault) core_.fault.put({error.code(), error.what(), 0, op.here});
    throw;
  }
}

void OpEnqueuer::enqueue(CudaStream& stream, const Op& op, std::uint64_t position) {
  if (op.kind == OpKind::kHost) call_on_host(stream, op, position);
  else if (op.kind == OpKind::kPlan) launch_plan(stream, op, position);
  else put(stream.handle, op);
}

void OpEnqueuer::record(CudaStream& stream, const Op& op, std::uint64_t position) {
  EventUse event;
  if (op.event) {
    op.event->retain();
    event = EventUse(static_cast<CudaEvent*>(op.event));
  } else {
    event = EventUse(events_.take(false));
  }
  checked(cudaEventRecord(event.native(), stream.handle), "cudaEventRecord", op);
  stream.add_mark(position, std::move(event));
}

EventUse OpEnqueuer::record_end(CudaStream& stream, std::uint64_t end, Here here) {
  EventUse event(events_.take(false));
  checked(cudaEventRecord(event.native(), stream.handle), "cudaEventRecord", {.kind = OpKind::kRecord, .here = here});
  stream.add_mark(end, event.share());
  return event;
}

void OpEnqueuer::put(cudaStream_t stream, const Op& op) const {
  switch (op.kind) {
    case OpKind::kKernel: return launch_kernel(stream, op);
    case OpKind::kCopy:
      return checked(cudaMemcpyAsync(runtime::address(op.writes[0]), runtime::address(op.reads[0]), op.writes[0].bytes,
                                     cudaMemcpyDefault, stream),
                     "cudaMemcpyAsync", op);
    case OpKind::kFill:
      return checked(
          cudaMemsetAsync(runtime::address(op.writes[0]), static_cast<int>(op.value), op.writes[0].bytes, stream),
          "cudaMemsetAsync", op);
    case OpKind::kWaitValue:
    case OpKind::kWriteValue: return wait_or_write_value(stream, op);
    case OpKind::kAlloc: {
      const cudaError_t status = cudaMallocFromPoolAsync(op.address, op.bytes, pool_, stream);
      if (status == cudaErrorMemoryAllocation) raise_out_of_memory(op.bytes, gpu_, op.name.text(), op.here);
      return checked(status, "cudaMallocFromPoolAsync", op);
    }
    case OpKind::kFree: return checked(cudaFreeAsync(*op.address, stream), "cudaFreeAsync", op);
    case OpKind::kExchange: return op.exchange->put(stream);
    default: base::fail(ErrorCode::kUnsupported, op.here, "a {} on a CUDA stream", op_kind_name(op.kind));
  }
}

[[gnu::hot]] void OpEnqueuer::launch_kernel(cudaStream_t stream, const Op& op) const {
  if (!op.kernel->cuda) [[unlikely]]
    base::fail(ErrorCode::kUnsupported, op.here, "kernel '{}' has no cuda function", op.name.text());
  constexpr std::size_t kInline = 16;
  alignas(ArgBytes)
      std::byte few[kInline * sizeof(ArgBytes)];  // raw bytes: an array of ArgBytes would be initialized in full
  std::vector<ArgBytes> many;
  const std::size_t count = op.reads.size() + op.writes.size();
  if (count > kInline) many.resize(count);
  ArgBytes* const pieces = count > kInline ? many.data() : reinterpret_cast<ArgBytes*>(few);
  ArgBytes* piece = pieces;
  for (const Range& range : op.reads) new (piece++) ArgBytes{runtime::address(range), range.bytes};
  for (const Range& range : op.writes) new (piece++) ArgBytes{runtime::address(range), range.bytes};
  const Args args({pieces, op.reads.size()}, {pieces + op.reads.size(), op.writes.size()},
                  {op.scalars.begin(), op.scalars.size()});
  op.kernel->cuda(args, stream);
  checked(cudaGetLastError(), "launch", op);
}

// CUDA's `flag >= value` is cyclic: it compares the difference as a signed number.
void OpEnqueuer::wait_or_write_value(cudaStream_t stream, const Op& op) const {
  static auto* const kWait = driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32");
  static auto* const kWrite = driver_function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32");
  const bool waits = op.kind == OpKind::kWaitValue;
  const auto flag = reinterpret_cast<CUdeviceptr>(runtime::address(waits ? op.reads[0] : op.writes[0]));
  const CUresult status = waits ? kWait(stream, flag, op.value, CU_STREAM_WAIT_VALUE_GEQ)
                                : kWrite(stream, flag, op.value, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (status != CUDA_SUCCESS)
    base::fail(ErrorCode::kInvalidValue, op.here, "{} on cuda:{} for op '{}': CUresult {}",
               waits ? "cuStreamWaitValue32" : "cuStreamWriteValue32", gpu_, op.name.text(), static_cast<int>(status));
}

void OpEnqueuer::call_on_host(CudaStream& stream, const Op& op, std::uint64_t position) {
  auto call = std::make_unique<HostCall>(HostCall{std::move(*op.host), &stream, core_.id, position, op.name, op.here});
  check(cudaLaunchHostFunc(stream.handle, call_host_function, call.get()), "cudaLaunchHostFunc", gpu_, op.name.text(),
        op.here);
  static_cast<void>(call.release());  // the callback owns it
}

}  // namespace slip::backend
