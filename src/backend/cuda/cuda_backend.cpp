#include "backend/cuda/cuda_backend.hpp"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <limits>

#include "backend/cuda/check.hpp"
#include "backend/cuda/stream_setup.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "base/slab.hpp"

namespace slip::backend {
namespace {

std::string no_gpu(cudaError_t status) {
  int driver = 0;  // version; 0: no driver
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  static_cast<void>(cudaGetLastError());
  if (driver == 0) return "no GPU: no NVIDIA driver was found on this machine";
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "no GPU was found: the NVIDIA driver sees none";
  if (status == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver is too old: it is of CUDA {}.{}, this build needs {}.{}", driver / 1000,
                       driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  return fmt::format("no GPU can be used: {}", cudaGetErrorString(status));
}

int gpu_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  static_cast<void>(cudaGetLastError());
  throw Error(ErrorCode::kInvalidDevice, no_gpu(status), {});
}

// Whether any library has created a primary context in this process. The CUDA runtime has loaded the driver by now. The
// functions are taken from the driver itself: the runtime's lookup could create a context.
bool has_context(int gpus) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) return false;
  const auto get_device = reinterpret_cast<decltype(cuDeviceGet)*>(::dlsym(driver, "cuDeviceGet"));
  const auto get_state =
      reinterpret_cast<decltype(cuDevicePrimaryCtxGetState)*>(::dlsym(driver, "cuDevicePrimaryCtxGetState"));
  bool found = false;
  for (int gpu = 0; get_device && get_state && gpu < gpus; ++gpu) {
    CUdevice device = 0;
    unsigned flags = 0;
    int active = 0;
    found |=
        get_device(&device, gpu) == CUDA_SUCCESS && get_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
  }
  ::dlclose(driver);
  return found;
}

constexpr int kMaxQueues = 32;  // the maximum of CUDA_DEVICE_MAX_CONNECTIONS

// Sets the number of hardware queues of this process and returns it. `wanted` 0: the maximum. With CUDA's default of 8,
// ten streams would share queues. If a stream waits for another rank, the streams in its queue wait behind it.
//
// The driver reads CUDA_DEVICE_MAX_CONNECTIONS once, when it is initialized. So only the first call can set it, before
// it calls the driver. If a context exists already, the driver has read the earlier value.
int process_queues(int wanted) {
  static const int kQueues = [wanted] {
    const int before = base::cuda_connections();
    base::set_cuda_connections(wanted > 0 ? wanted : kMaxQueues);
    return has_context(gpu_count()) ? before : base::cuda_connections();
  }();
  return kQueues;
}

// While an object of this class exists, this thread may call CUDA functions that a capture otherwise forbids.
class RelaxedCapture : base::NoCopy {
 public:
  RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool known = cudaStreamIsCapturing(stream, &status) == cudaSuccess;
  // The query fails for the legacy stream while another stream captures. Then the legacy stream counts as capturing.
  if (!known) static_cast<void>(cudaGetLastError());
  return !known || status != cudaStreamCaptureStatusNone;
}

CudaBackend::CudaBackend(runtime::DeviceCore& core, int gpu)
    : core_(core), gpu_(gpu), only_gpu_(gpu_count() == 1), enqueuer_(core, gpu), times_(gpu) {
  make_current();
  check(cudaFree(nullptr), "cudaFree", gpu_);  // creates the context now, not with the first op
  core_.native.emplace().ordinal = static_cast<std::uint32_t>(gpu_);
  fill_info();
  enqueuer_.make_pool();
  reach_peers();
}

void CudaBackend::fill_info() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpu_), "cudaGetDeviceProperties", gpu_);
  DeviceInfo& info = core_.info;
  info.description = fmt::format("{}, sm_{}{}, {} multiprocessors", properties.name, properties.major, properties.minor,
                                 properties.multiProcessorCount);
  info.memory_bytes = properties.totalGlobalMem;
  info.compute_workers = properties.multiProcessorCount;
  info.copy_engines = properties.asyncEngineCount;
  info.queues = process_queues(0);  // open_cuda called it first
  check(cudaDeviceGetStreamPriorityRange(&info.min_priority, &info.max_priority), "cudaDeviceGetStreamPriorityRange",
        gpu_);
}

// Enables CUDA peer access to every GPU that supports it, for the whole process. Slipstream's runtime checks which
// device may access which memory.
void CudaBackend::reach_peers() {
  std::vector<std::uint32_t>& reachable = core_.native->reachable;
  reachable.push_back(core_.native->ordinal);
  const int count = gpu_count();
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other == gpu_ || cudaDeviceCanAccessPeer(&can, gpu_, other) != cudaSuccess || can == 0) continue;
    const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
    if (status != cudaErrorPeerAccessAlreadyEnabled) check(status, "cudaDeviceEnablePeerAccess", gpu_);
    static_cast<void>(cudaGetLastError());
    reachable.push_back(static_cast<std::uint32_t>(other));
  }
}

CudaBackend::~CudaBackend() {
  static_cast<void>(cudaSetDevice(gpu_));
  try {
    times_.collect();
  } catch (const Error&) {
    // The device is lost: the last ops have no times.
  }
  for (CudaStream* stream : streams_) {
    if (stream->handle && stream->owned) cudaStreamDestroy(stream->handle);
    stream->handle = nullptr;
    stream->note_done(stream->submitted.load(std::memory_order_relaxed));
    stream->id.store(0, std::memory_order_relaxed);
    stream->device_id.store(0, std::memory_order_relaxed);
    stream->core = nullptr;
    base::Slab<CudaStream>::give(stream);
  }
  static_cast<void>(cudaGetLastError());  // at exit the driver may already be shut down, and the calls above fail
}

// The current GPU is a property of the thread, and a framework may have changed it. Querying it costs as much as
// setting it, about 100 ns. With only one GPU, setting it once per thread suffices.
void CudaBackend::make_current() const {
  thread_local bool t_set = false;
  if (t_set && only_gpu_) return;
  check(cudaSetDevice(gpu_), "cudaSetDevice", gpu_);
  t_set = true;
}

void* CudaBackend::allocate(MemoryKind kind, std::size_t bytes) {
  make_current();
  void* data = nullptr;
  cudaError_t status = cudaSuccess;
  switch (kind) {
    case MemoryKind::kDevice: status = cudaMalloc(&data, bytes); break;
    case MemoryKind::kPinned: status = cudaHostAlloc(&data, bytes, cudaHostAllocPortable); break;
    case MemoryKind::kPageable:
      data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
      status = data ? cudaSuccess : cudaErrorMemoryAllocation;
      break;
  }
  if (status == cudaErrorMemoryAllocation) raise_out_of_memory(bytes, gpu_, memory_kind_name(kind), {});
  check(status, kind == MemoryKind::kDevice ? "cudaMalloc" : "cudaHostAlloc", gpu_);
  return data;
}

void CudaBackend::deallocate(MemoryKind kind, void* data, std::size_t) noexcept {
  switch (kind) {
    case MemoryKind::kDevice: cudaFree(data); break;
    case MemoryKind::kPinned: cudaFreeHost(data); break;
    case MemoryKind::kPageable: std::free(data); break;
  }
  static_cast<void>(cudaGetLastError());
}

// Returns a closed stream of this device whose work is done, for reuse.
CudaStream* CudaBackend::find_drained() {
  for (CudaStream* stream : streams_) {
    if (stream->id.load(std::memory_order_acquire) == 0 && !stream->handle && stream->drained()) return stream;
  }
  return nullptr;
}

runtime::StreamState* CudaBackend::open_stream(const runtime::StreamSpec& spec) {
  make_current();
  const RelaxedCapture relaxed;
  cudaStream_t handle = spec.legacy ? cudaStreamLegacy : spec.adopted;
  const bool owned = handle == nullptr;
  if (owned) {
    const unsigned wanted = spec.flags == StreamFlags::kNonBlocking ? cudaStreamNonBlocking : cudaStreamDefault;
    check(cudaStreamCreateWithPriority(&handle, wanted, spec.priority), "cudaStreamCreateWithPriority", gpu_);
  }
  // While a stream captures, it cannot run the kernel of set_up_stream(), and CUDA does not return its flags. It counts
  // as non-blocking, because it cannot be ordered with the legacy stream.
  unsigned flags = cudaStreamNonBlocking;
  if (!spec.legacy && !is_capturing(handle)) {
    cudaError_t status = set_up_stream(handle);
    if (status == cudaSuccess) status = cudaStreamGetFlags(handle, &flags);
    if (status != cudaSuccess && owned) cudaStreamDestroy(handle);
    check(status, "the setup of a stream", gpu_);
  }
  const base::LockGuard lock(mutex_);
  CudaStream* stream = find_drained();
  if (!stream) {
    stream = base::Slab<CudaStream>::take();
    streams_.push_back(stream);
  }
  const base::LockGuard submitting(stream->submitting);
  stream->handle = handle;
  stream->owned = owned;
  stream->may_end = spec.adopted_may_end;
  stream->gpu = gpu_;
  stream->joins_legacy = flags != cudaStreamNonBlocking;
  stream->legacy_seen.store(0, std::memory_order_relaxed);
  stream->seen_by_legacy.store(stream->submitted.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (spec.legacy) legacy_ = stream;
  return stream;
}

void CudaBackend::close_stream(runtime::StreamState& state) noexcept {
  CudaStream& stream = static_cast<CudaStream&>(state);
  static_cast<void>(cudaSetDevice(gpu_));
  {
    const base::LockGuard lock(stream.submitting);
    try {  // record an event at the end of the stream's work: once it is reached, find_drained() may reuse the state
      if (stream.has_handle()) {
        const std::uint64_t end = stream.submitted.load(std::memory_order_relaxed) + 1;
        enqueuer_.record(stream, {.kind = OpKind::kRecord}, end);
        stream.submitted.store(end, std::memory_order_release);  // as in submit_any()
      }
    } catch (const Error&) {
      // The device is lost: nothing will run any more.
    }
    if (stream.owned) cudaStreamDestroy(stream.handle);
    static_cast<void>(cudaGetLastError());
    stream.handle = nullptr;  // under the lock: a later submission sees it, see require_open()
  }
  const base::LockGuard lock(mutex_);
  stream.id.store(0, std::memory_order_release);  // see find_drained()
}

void CudaBackend::lose(cudaError_t status, const char* call) {
  static_cast<void>(cudaGetLastError());
  std::string ops;
  const base::LockGuard lock(mutex_);
  for (CudaStream* stream : streams_) {
    const std::uint64_t last = stream->submitted.load(std::memory_order_relaxed);
    if (last == 0 || stream->known_done(last)) continue;
    const CudaStream::Recent& recent = stream->recent[last % stream->recent.size()];
    if (recent.name)
      ops += fmt::format("{}'{}' ({}:{})", ops.empty() ? "; issued last: " : ", ", recent.name.text(), recent.here.file,
                         recent.here.line);
  }
  core_.fault.put(
      {code_of(status),
       fmt::format("{} on cuda:{}: {} ({}){}{}", call, gpu_, cudaGetErrorString(status), cudaGetErrorName(status), ops,
                   core_.options.launch_blocking ? "" : "; SLIP_LAUNCH_BLOCKING=1 names the op exactly"),
       0,
       {}});
}

bool CudaBackend::done(cudaError_t status, const char* call) {
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  // A capture forbids the query, but the device is not lost.
  if (status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread)
    raise_cuda(status, call, gpu_, {}, {});
  if (status != cudaSuccess) lose(status, call);
  return true;
}

bool CudaBackend::reached(runtime::StreamState& state, std::uint64_t position) {
  static_cast<void>(cudaSetDevice(gpu_));  // if the device is lost, the query below reports it
  CudaStream& stream = static_cast<CudaStream&>(state);
  if (position != runtime::kEverything && stream.known_done(position)) return true;
  const std::uint64_t end = stream.submitted.load(std::memory_order_relaxed);
  bool is_done = false;
  if (const EventUse event = position == runtime::kEverything ? EventUse() : stream.mark_at(position)) {
    is_done = done(cudaEventQuery(event.native()), "cudaEventQuery");
  } else {
    if (!stream.has_handle()) return stream.drained();
    is_done = done(cudaStreamQuery(stream.handle), "cudaStreamQuery");
    position = end;
  }
  if (!is_done) return false;
  stream.note_done(position);
  if (times_.active()) times_.collect();
  return true;
}

// Queries until the work is done or the deadline has passed. After some queries the thread sleeps between them.
bool CudaBackend::poll(std::int64_t deadline_ns, const char* call, const std::function<cudaError_t()>& query) {
  for (base::Backoff backoff(base::kDeviceQueryWait); !done(query(), call); backoff.pause()) {
    if (base::now_ns() > deadline_ns) return false;
  }
  return true;
}

bool CudaBackend::wait(runtime::StreamState* state, std::uint64_t position, std::int64_t deadline_ns) {
  static_cast<void>(cudaSetDevice(gpu_));
  if (!state) return wait_for_all(deadline_ns);
  CudaStream& stream = static_cast<CudaStream&>(*state);
  if (position != runtime::kEverything && stream.known_done(position)) return true;
  const std::uint64_t end = stream.submitted.load(std::memory_order_relaxed);
  if (position == runtime::kEverything && stream.may_end) position = end;
  const EventUse event = position == runtime::kEverything ? EventUse() : stream.mark_at(position);
  bool is_done = false;
  if (event) {
    is_done = wait_for_event(event, deadline_ns);
  } else if (!stream.has_handle()) {
    is_done = stream.drained() || wait_for_all(deadline_ns);
  } else {
    is_done = deadline_ns == 0 ? done(cudaStreamSynchronize(stream.handle), "cudaStreamSynchronize")
                               : poll(deadline_ns, "cudaStreamQuery", [&] { return cudaStreamQuery(stream.handle); });
  }
  if (!is_done) return false;
  stream.note_done(event ? position : end);
  if (times_.active()) times_.collect();
  return true;
}

bool CudaBackend::wait_for_event(const EventUse& event, std::int64_t deadline_ns) {
  if (deadline_ns == 0) return done(cudaEventSynchronize(event.native()), "cudaEventSynchronize");
  return poll(deadline_ns, "cudaEventQuery", [&] { return cudaEventQuery(event.native()); });
}

// Waits for every stream of the device. Not with cudaDeviceSynchronize: while any thread captures, for example to
// compile a plan, that call fails and invalidates the capture.
bool CudaBackend::wait_for_all(std::int64_t deadline_ns) {
  struct End {
    CudaStream* stream;
    std::uint64_t position;
    EventUse event;
  };
  std::vector<End> ends;
  try {
    const base::LockGuard lock(mutex_);
    for (CudaStream* stream : streams_) {
      const std::uint64_t position = stream->submitted.load(std::memory_order_acquire);
      // The owner of an adopted stream may have enqueued work that this backend does not know.
      EventUse event =
          stream->has_handle() && !stream->owned ? mark_end(*stream, {}) : event_for(*stream, position, {});
      if (event) ends.push_back({stream, position, std::move(event)});
    }
  } catch (const Error&) {  // the device is lost, or the program captures a stream
    if (!core_.fault.set()) throw;
    return true;
  }
  for (const End& end : ends) {
    if (!wait_for_event(end.event, deadline_ns)) return false;
    end.stream->note_done(end.position);
  }
  if (times_.active()) times_.collect();
  return true;
}

Picos CudaBackend::now() { return base::now_ns() * 1000; }

runtime::Backends open_cuda(std::string_view rest, runtime::Cores cores) {
  const std::optional<int> number = rest.empty() ? 0 : base::parse_number(rest, 0, std::numeric_limits<int>::max());
  if (!number) base::fail(ErrorCode::kInvalidDevice, {}, "no device 'cuda:{}': write cuda or cuda:NUMBER", rest);
  const int first = *number;
  const int wanted = cores.front()->options.max_connections;
  const int queues = process_queues(wanted);
  const int count = gpu_count();
  const std::int64_t last = std::int64_t{first} + static_cast<std::int64_t>(cores.size()) - 1;
  if (last >= count)
    base::fail(ErrorCode::kInvalidDevice, {}, "cuda:{} to cuda:{} were asked for, this machine has {} GPU{}", first,
               last, count, count == 1 ? "" : "s");
  if (wanted > 0 && queues != wanted)
    base::fail(ErrorCode::kInvalidValue, {},
               "max_connections {}: this process has {} hardware queues; set CUDA_DEVICE_MAX_CONNECTIONS={} before its "
               "first CUDA call",
               wanted, queues, wanted);
  runtime::Backends result;
  for (std::size_t i = 0; i < cores.size(); ++i)
    result.push_back(std::make_unique<CudaBackend>(*cores[i], first + static_cast<int>(i)));
  return result;
}

}  // namespace slip::backend
