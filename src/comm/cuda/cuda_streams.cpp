#include "comm/cuda/cuda_streams.hpp"

#include <algorithm>

#include "backend/cuda/check.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "base/clock.hpp"
#include "base/fail.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"

namespace slip::comm {
namespace {

// The op of a call: the backend calls put() while it enqueues the op.
class PutExchange final : public runtime::Exchange {
 public:
  PutExchange(const std::function<void(cudaStream_t)>& put, bool other_threads)
      : put_(put), other_threads_(other_threads) {}
  void put(CUstream_st* stream) override { put_(stream); }
  bool uses_other_threads() const noexcept override { return other_threads_; }
  bool advance(By) noexcept override { return true; }
  bool can_advance() noexcept override { return true; }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const runtime::Failure*) override {}

 private:
  const std::function<void(cudaStream_t)>& put_;
  const bool other_threads_;
};

}  // namespace

int gpu_of(const Device& device) {
  const std::string& name = device.info().name;  // "cuda" or "cuda:N"
  const std::size_t colon = name.find(':');
  return colon == std::string::npos ? 0 : std::stoi(name.substr(colon + 1));
}

void require_aligned(const GpuCall& asked, Here here) {
  const Call& call = asked.call;
  const std::uint64_t size = reduces(call.kind) ? bytes_of(call.type) : 1;
  for (const std::byte* data : {asked.input, static_cast<const std::byte*>(asked.output)}) {
    if (reinterpret_cast<std::uint64_t>(data) % size != 0)
      base::fail(ErrorCode::kInvalidValue, here,
                 "{} of {}: a buffer on a GPU must be aligned to its elements of {} bytes", collective_name(call.kind),
                 data_type_name(call.type), size);
  }
}

unsigned long long capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

CallOrder::~CallOrder() {
  for (const Captured& one : captures_) static_cast<void>(cudaEventDestroy(one.event));
}

void CallOrder::require_stream_of_device(const runtime::StreamState& stream, Here here) const {
  if (stream.core->native && stream.core->native->ordinal == static_cast<std::uint32_t>(gpu_)) return;
  base::fail(ErrorCode::kInvalidDevice, here,
             "a call of a communicator on '{}' in a stream of '{}': the stream must be of the same GPU",
             device_.info().label, stream.core->info.label);
}

// A program may capture any number of graphs, and CUDA does not report when a capture ends. So only the last
// kMaxCaptures captures are kept: a new one reuses the event of the oldest.
CallOrder::Captured& CallOrder::captured_in(unsigned long long capture) {
  constexpr std::size_t kMaxCaptures = 64;  // at the same time, with calls of one communicator
  const auto found = std::ranges::find(captures_, capture, &Captured::capture);
  if (found != captures_.end()) return *found;
  if (captures_.size() == kMaxCaptures) {
    std::rotate(captures_.begin(), captures_.begin() + 1, captures_.end());
  } else {
    Captured made;
    backend::check(cudaEventCreateWithFlags(&made.event, cudaEventDisableTiming), "cudaEventCreateWithFlags", gpu_);
    captures_.push_back(made);
  }
  captures_.back() = {capture, nullptr, captures_.back().event};
  return captures_.back();
}

std::uint64_t CallOrder::enqueue(Op& op, runtime::StreamState& stream, GpuCalls::Submit& submit,
                                 const std::function<void(cudaStream_t)>& put, bool other_threads) {
  cudaStream_t const native = stream.native();
  const unsigned long long capture = capture_of(native);
  last_use_ = capture != 0 ? CallUse::kCaptured : CallUse::kRuns;
  Captured* const captured = capture == 0 ? nullptr : &captured_in(capture);
  if (captured && captured->native && captured->native != native)
    backend::check(cudaStreamWaitEvent(native, captured->event, 0), "cudaStreamWaitEvent", gpu_);
  if (!captured && eager_.stream && eager_.stream != &stream)
    stream.core->backend->submit(stream,
                                 {.kind = OpKind::kWait, .here = op.here, .point = {eager_.stream, eager_.position}});
  const std::function<void(cudaStream_t)> put_captured = [&](cudaStream_t target) {
    put(target);
    backend::check(cudaEventRecord(captured->event, target), "cudaEventRecord", gpu_);
    captured->native = target;
  };
  PutExchange exchange(captured ? put_captured : put, other_threads);
  op.exchange = &exchange;
  const std::uint64_t position = submit(stream, op);
  op.exchange = nullptr;
  if (!captured) eager_ = {&stream, position};  // only now: a call that was not enqueued has no position
  return position;
}

void PendingStreams::note(runtime::StreamState& stream, std::uint64_t position, CallUse use) {
  const std::uint64_t id = stream.id.load(std::memory_order_relaxed);  // relaxed: the caller uses the stream
  const Pending noted{&stream, id, position, use};
  const base::LockGuard lock(mutex_);
  const auto same =
      std::ranges::find_if(pending_, [&](const Pending& one) { return one.stream == &stream && one.use == use; });
  if (same != pending_.end()) *same = noted;
  else pending_.push_back(noted);
  // The communicator has failed, and the watching thread may have released this call already. Then the call has ended
  // without its result, so the stream must fail.
  if (error_ && use == CallUse::kRuns) fail(noted, *error_);
}

// Whether the backend may look for the end of the call. CUDA would invalidate a capture if its stream were queried.
bool PendingStreams::can_query(const Pending& one) {
  auto& stream = static_cast<backend::CudaStream&>(*one.stream);  // see require_stream_of_device()
  if (one.use == CallUse::kRuns && (stream.known_done(one.position) || stream.mark_at(one.position))) return true;
  return !stream.has_handle() || !backend::is_capturing(stream.handle);
}

void PendingStreams::fail(const Pending& one, const Error& error) {
  fail_stream(*one.stream, {error.code(), base::bare_text(error), one.position, error.here(), 0});
}

void PendingStreams::fail(const Error& error) {
  const base::LockGuard lock(mutex_);
  error_.emplace(error);
  for (const Pending& one : pending_) {
    if (one.stream->id.load(std::memory_order_acquire) != one.id || !one.stream->core) continue;
    const bool can_ask = can_query(one);
    if (one.use == CallUse::kCaptured && !can_ask) continue;  // its graph does not run yet
    try {
      if (can_ask && one.stream->core->backend->reached(*one.stream, one.position)) continue;
    } catch (const Error&) {  // a capture has begun meanwhile: the call may not have ended
    }
    fail(one, error);
  }
}

void PendingStreams::drain() noexcept {
  std::vector<Pending> pending;
  {
    const base::LockGuard lock(mutex_);
    pending = pending_;
  }
  for (const Pending& one : pending) {
    // 0: the stream was closed, but its work goes on. Another id: its work had ended before the state was reused.
    const std::uint64_t id = one.stream->id.load(std::memory_order_acquire);
    if ((id != one.id && id != 0) || !one.stream->core || !can_query(one)) continue;
    try {
      one.stream->core->backend->wait(one.stream, one.position, 0);
    } catch (const Error&) {  // a capture has begun meanwhile: nothing can wait for the stream
    }
  }
}

void WatchThread::start(const char* name, int gpu, std::function<void()> look,
                        std::function<void(ErrorCode, const std::string& text)> fail) {
  thread_.start(name, [this, gpu, look = std::move(look), fail = std::move(fail)] {
    constexpr std::int64_t kLookNs = 1'000'000;  // short, because a rank that uses new memory waits for a look
    static_cast<void>(cudaSetDevice(gpu));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
    while (!ends()) {
      try {
        look();
      } catch (const Error& error) {
        fail(error.code(), base::bare_text(error));
      } catch (const std::exception& error) {
        fail(ErrorCode::kLaunchFailed, error.what());
      }
      base::sleep_ns(kLookNs);
    }
  });
}

void WatchThread::stop() noexcept {
  if (!thread_.started()) return;
  ends_.store(true, std::memory_order_relaxed);
  thread_.join();
  thread_ = {};
}

}  // namespace slip::comm
