#include "comm/cuda/cuda_hosts.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "backend/cuda/check.hpp"
#include "base/fail.hpp"
#include "comm/cuda/cuda_driver.hpp"
#include "comm/cuda/cuda_kernels.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

// Ordinary memory that is registered, not memory of cudaHostAlloc: ranks of one host let the kernel copy between their
// address spaces, and the kernel cannot access mappings of the driver.
std::unique_ptr<StagingMemory> make_pinned(int gpu) {
  constexpr std::size_t kHugePage = 2 << 20;
  constexpr std::size_t kBytes = (StagingMemory::kBytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const data = std::aligned_alloc(kHugePage, kBytes);
  if (!data) throw Error(ErrorCode::kOutOfMemory, "no host memory for the staging of a communicator on GPUs", {});
  static_cast<void>(::madvise(data, kBytes, MADV_HUGEPAGE));
  std::memset(data, 0, kBytes);
  const cudaError_t status = cudaHostRegister(data, kBytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status != cudaSuccess) std::free(data);
  backend::check(status, "cudaHostRegister", gpu);
  return std::make_unique<StagingMemory>(StagingMemory{static_cast<std::byte*>(data), false});
}

// Whether another rank is a thread of this process and uses the same GPU.
bool shares_gpu(transport::Bootstrap& bootstrap, int gpu) {
  const std::vector<int> gpus = bootstrap.all_gather(gpu);
  const std::vector<transport::Placement>& places = bootstrap.placements();
  const auto own = static_cast<std::size_t>(bootstrap.rank());
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    if (rank != own && gpus[rank] == gpu && same_process(places[rank], places[own])) return true;
  }
  return false;
}

}  // namespace

// Copies that may run at the same time, in any order. A single copy is a plain one: if two processes share an H200, a
// batch of one copy of 8 B to 16 KiB to the device takes 45 to 278 us, a plain copy 6 to 10 us. Several copies become a
// batch, which asks for the copy engines. A batch cannot be in the default stream, and a capture takes plain copies
// only.
class CudaHosts::CopyBatch {
 public:
  CopyBatch(cudaStream_t stream, int gpu) : stream_(stream), gpu_(gpu) {}

  void add(void* to, const void* from, std::size_t bytes) {
    to_.push_back(to);
    from_.push_back(from);
    bytes_.push_back(bytes);
  }
  void put() {
    if (to_.empty()) return;
    if (!put_batch()) {
      for (std::size_t i = 0; i < to_.size(); ++i)
        backend::check(cudaMemcpyAsync(to_[i], from_[i], bytes_[i], cudaMemcpyDefault, stream_), "cudaMemcpyAsync",
                       gpu_);
    }
    to_.clear();
    from_.clear();
    bytes_.clear();
  }

 private:
  bool put_batch() {
    const bool is_default = stream_ == nullptr || stream_ == cudaStreamLegacy || stream_ == cudaStreamPerThread;
    if (is_default || to_.size() == 1 || capture_of(stream_) != 0) return false;
    cudaMemcpyAttributes by_engine{};
    by_engine.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    by_engine.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    std::size_t first = 0;
    const cudaError_t status =
        cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), to_.size(), &by_engine, &first, 1, stream_);
    if (status != cudaSuccess) static_cast<void>(cudaGetLastError());  // an older driver
    return status == cudaSuccess;
  }

  cudaStream_t const stream_;
  const int gpu_;
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<std::size_t> bytes_;
};

std::unique_ptr<GpuCalls> CudaHosts::meet(transport::Bootstrap& bootstrap, const Device& device) {
  std::unique_ptr<GpuCalls> made(new CudaHosts(bootstrap, device));
  bootstrap.barrier();  // no rank calls before all have their memory
  return made;
}

CudaHosts::CudaHosts(transport::Bootstrap& bootstrap, const Device& device)
    : rank_(bootstrap.rank()), nranks_(bootstrap.nranks()), gpu_(gpu_of(device)), order_(device) {
  const DeviceScope scope(gpu_);
  shares_gpu_ = shares_gpu(bootstrap, gpu_);
  if (shares_gpu_) backend::check(load_wait_kernel(), "cudaFuncGetAttributes", gpu_);
  // Registered as portable, so it serves all GPUs.
  memory_ = ReusedMemory<StagingMemory>::take([](const StagingMemory&) { return true; },
                                              [this] { return make_pinned(gpu_); });
  std::memset(memory_->data, 0, StagingMemory::kFlagBytes);
}

// A graph with calls of this communicator may still exist, although the program should have destroyed it before. Its
// launches write to the slots, so no other communicator may reuse them. The same holds if a call was enqueued only in
// part, because no thread waits for the end of that part.
CudaHosts::~CudaHosts() {
  stop();
  memory_->retired = retires_ || order_.has_captured();
}

void CudaHosts::start(GpuWatch watch) {
  StagedThread::Setup setup;
  setup.memory = *memory_;
  fail_ = watch.fail;
  // If the GPU is lost, no stream posts parts any more. The other ranks learn it here, not at their deadline.
  setup.error = [this, error = std::move(watch.error)]() -> std::optional<Error> {
    if (std::optional<Error> first = error()) return first;
    const runtime::DeviceCore* const core = core_.load(std::memory_order_acquire);
    if (!core || !core->fault.set()) return std::nullopt;
    const runtime::Failure fault = core->fault.value();
    fail_(fault.code, fault.text);
    if (std::optional<Error> first = error()) return first;
    return Error(fault.code, fault.text, fault.here);
  };
  setup.fail = std::move(watch.fail);
  setup.fail_streams = [this](const Error& error) {
    std::optional<DeviceScope> scope;
    try {
      scope.emplace(gpu_);
    } catch (const Error&) {  // the device is lost: the streams get the error all the same
    }
    pending_.fail(error);
  };
  setup.ranks = watch.ranks;
  setup.calls = watch.calls;
  thread_.start(std::move(setup));
}

std::uint64_t CudaHosts::start_call(const GpuCall& call, Op& op, runtime::StreamState& stream, Submit& submit) {
  order_.require_stream_of_device(stream, op.here);
  const StagedCollective staged(call.call, rank_, nranks_);
  steps_.clear();
  write_steps(staged, call.input, call.output, steps_);
  return enqueue(staged, op, stream, submit);
}

std::uint64_t CudaHosts::start_messages(std::span<const UserMessage> messages, std::uint64_t, Op& op,
                                        runtime::StreamState& stream, Submit& submit) {
  order_.require_stream_of_device(stream, op.here);
  StagedMessages staged(messages, nranks_);
  steps_.clear();
  write_steps(staged, messages, steps_);
  return enqueue(std::move(staged), op, stream, submit);
}

std::uint64_t CudaHosts::enqueue(StagedCall call, Op& op, runtime::StreamState& stream, Submit& submit) {
  const DeviceScope scope(gpu_);
  core_.store(stream.core, std::memory_order_release);  // release: the thread reads the core through it
  const bool is_captured = capture_of(stream.native()) != 0;
  const std::uint32_t id =
      thread_.add(std::move(call), is_captured ? StagedThread::Use::kCaptured : StagedThread::Use::kOnce);
  bool posts = false;
  try {
    const std::uint64_t position =
        order_.enqueue(op, stream, submit, [&](cudaStream_t native) { put(id, native, posts); });
    pending_.note(stream, position, order_.last_use());
    // A stream of the next call may have to wait for this one, and this stream may capture by then. So the end is
    // marked now. A record takes about a microsecond, a call some tens.
    if (!is_captured) stream.core->backend->submit(stream, {.kind = OpKind::kRecord});
    return position;
  } catch (const Error& error) {
    if (!posts) {
      thread_.remove(id);
    } else if (!is_captured) {  // the thread may run the call already, so its id stays in use
      retires_ = true;
      fail_(error.code(), base::bare_text(error));
    }
    throw;
  }
}

// Sets `posts` before the first operation that lets the thread see the call.
void CudaHosts::put(std::uint32_t id, cudaStream_t stream, bool& posts) const {
  std::vector<MemoryOperation> operations;
  CopyBatch copies(stream, gpu_);
  const auto flush = [&] {
    if (operations.empty()) return;
    posts = true;
    put_memory_operations(stream, operations, gpu_);
    operations.clear();
  };
  StagedStep::Kind last = StagedStep::Kind::kPost;
  for (const StagedStep& step : steps_) {
    StagingFlags& flags = memory_->flags(step.slot);
    // The copies of a batch have no order. A copy from a slot must end before the next part is copied into it.
    if (step.kind != last) copies.put();
    last = step.kind;
    switch (step.kind) {
      case StagedStep::Kind::kPost: operations.push_back(write_32(&flags.posted, id)); break;
      case StagedStep::Kind::kAwait:
        // A memory operation that waits may hold up copies of other streams of this process, see
        // backend/cuda/stream_setup.hpp. The other rank's copies are such: it would never post its part. A kernel
        // holds up nothing, but occupies a part of the GPU.
        if (shares_gpu_) {
          flush();
          backend::check(launch_wait(&flags.done, stream), "cudaLaunchKernel", gpu_);
          break;
        }
        operations.push_back(wait_for_32(&flags.done, 1));
        operations.push_back(write_32(&flags.done, 0));
        break;
      case StagedStep::Kind::kToHost:
      case StagedStep::Kind::kToDevice:
        flush();
        put_copy(step, copies, stream);
        break;
    }
  }
  copies.put();
  flush();
}

void CudaHosts::put_copy(const StagedStep& step, CopyBatch& copies, cudaStream_t stream) const {
  const StagedCopy& copy = step.copy;
  const StagingSlot slot = memory_->slot(step.slot);
  const bool to_host = step.kind == StagedStep::Kind::kToHost;
  std::byte* const host = (to_host || step.from_input ? slot.input : slot.output) + copy.slot_offset;
  if (copy.rows == 1 || copy.bytes == copy.pitch)
    return copies.add(to_host ? host : copy.device, to_host ? copy.device : host, copy.rows * copy.bytes);
  const auto copy_rows = [&](std::byte* to, std::size_t to_pitch, const std::byte* from, std::size_t from_pitch) {
    backend::check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, copy.bytes, copy.rows, cudaMemcpyDefault, stream),
                   "cudaMemcpy2DAsync", gpu_);
  };
  if (to_host) copy_rows(host, copy.bytes, copy.device, copy.pitch);
  else copy_rows(copy.device, copy.pitch, host, copy.bytes);
}

}  // namespace slip::comm
