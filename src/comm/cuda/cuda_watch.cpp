#include "comm/cuda/cuda_watch.hpp"

#include <map>

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/thread.hpp"
#include "comm/cuda/cuda_driver.hpp"
#include "comm/cuda/cuda_ranks.hpp"
#include "comm/diagnose/stalls.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kLooksPerCount = 16;  // every 16th look() copies the count of calls from the device

// The ranks of a process share one mapping of a segment, and CUDA registers a range only once.
struct HostRegistrations {
  base::Mutex mutex;
  std::map<void*, int> counts SLIP_GUARDED_BY(mutex);  // how many ranks use the range
};

void register_host_memory(void* data, std::size_t bytes, int gpu) {
  auto& all = base::process_wide<HostRegistrations>();
  const base::LockGuard lock(all.mutex);
  if (!all.counts.contains(data))
    backend::check(cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister",
                   gpu);
  ++all.counts[data];  // only after a success: the next rank tries again
}

void unregister_host_memory(void* data) noexcept {
  {
    auto& all = base::process_wide<HostRegistrations>();
    const base::LockGuard lock(all.mutex);
    const auto found = all.counts.find(data);
    if (found == all.counts.end() || --found->second > 0) return;
    all.counts.erase(found);
  }
  // Not under the mutex: cudaHostUnregister may wait for kernels of other communicators, and these may wait for a rank
  // of this process that needs the mutex. No rank registers the range at the same time: all ranks that share it have
  // registered it before init ended. If init failed, it failed on all of them.
  static_cast<void>(cudaHostUnregister(data));
  static_cast<void>(cudaGetLastError());
}

// Flags in host memory that kernels and memory operations of all ranks also write. acquire: the data that the device
// wrote before is visible. release: the device sees the data that this thread wrote before.
template <class Flag>
Flag load(const Flag& flag) {
  return __atomic_load_n(&flag, __ATOMIC_ACQUIRE);
}
template <class Flag>
void store(Flag& flag, Flag value) {
  __atomic_store_n(&flag, value, __ATOMIC_RELEASE);
}

}  // namespace

std::size_t SharedPages::flag_bytes() const {
  const auto n = static_cast<std::size_t>(nranks_);
  const std::size_t bytes = n * sizeof(RankPage) + n * n * sizeof(MessageBox);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void SharedPages::share(transport::Bootstrap& bootstrap, int gpu) {
  nranks_ = bootstrap.nranks();
  std::vector<int> all;
  for (int rank = 0; rank < nranks_; ++rank) all.push_back(rank);
  segment_ = transport::Segment::share(bootstrap, all,
                                       flag_bytes() + static_cast<std::size_t>(nranks_) * sizeof(PublishedMemory));
  register_host_memory(segment_.data(), flag_bytes(), gpu);
}

SharedPages::~SharedPages() {
  if (segment_.data()) unregister_host_memory(segment_.data());
}

MessageBox& SharedPages::box(int from, int to) const {
  auto* const boxes = reinterpret_cast<MessageBox*>(pages() + nranks_);
  return boxes[from * nranks_ + to];
}

PublishedMemory* SharedPages::published() const {
  return reinterpret_cast<PublishedMemory*>(segment_.data() + flag_bytes());
}

void CudaWatch::start(const Setup& setup, GpuWatch watch) {
  setup_ = setup;
  watch_ = std::move(watch);
  thread_.start(
      "slip-cuda-watch", setup_.control->gpu, [this] { look(); }, watch_.fail);
}

void CudaWatch::look() {
  setup_.peers->serve();
  if (failed_) return release_waits();
  if (const std::optional<Error> error = watch_.error()) {
    failed_ = true;  // before the next line, which may throw: the waits must be released even then
    pending_.fail(*error);
    return release_waits();
  }
  const RankPage& page = own_page();
  if (load(page.mismatch_state) != 0) return report_mismatch();
  count_calls();
  const bool together = setup_.mode == MeetingMode::kTogether;
  const std::uint32_t finished = load(page.finished);
  const std::uint32_t begun = together ? load(page.begun) : finished + load(page.arrived);
  keep_ledger(together ? load(page.counted) : finished, begun);
  check_progress(finished, begun);
  if (!together) check_messages();
}

CudaWatch::Noted CudaWatch::call_at(std::uint32_t count) const {
  const base::LockGuard lock(mutex_);
  return noted_[count % noted_.size()];
}

// The device counts a captured call at each launch of its graph, but the host counts it once. So the counts differ from
// the first launch on, and the host can no longer find a call by the device's count.
std::string CudaWatch::name_of(std::uint32_t count) const {
  const base::LockGuard lock(mutex_);
  return any_captured_ ? "a call (perhaps of a CUDA graph)" : noted_[count % noted_.size()].signature.text();
}

// The progress of calls that did not wait long is in device memory only.
void CudaWatch::count_calls() {
  if (setup_.mode != MeetingMode::kTogether || ++looks_ % kLooksPerCount != 0) return;
  {
    const base::LockGuard lock(mutex_);
    if (count_ == load(own_page().counted)) return;
  }
  backend::check(cudaMemcpyAsync(&own_page().counted, &setup_.control->control->calls, sizeof(std::uint32_t),
                                 cudaMemcpyDeviceToHost, setup_.control->stream),
                 "cudaMemcpyAsync", setup_.control->gpu);
}

void CudaWatch::keep_ledger(std::uint32_t ended, std::uint32_t begun) {
  transport::LedgerSlot& ledger = *watch_.ledger;
  if (ended != last_counted_) {
    last_counted_ = ended;
    ledger.wait_over();
    const Noted call = call_at(ended);
    ledger.begin(call.ticket, call.signature.elements, call.signature.rest);
    ledger.end(call.ticket);
  }
  if (static_cast<std::int32_t>(begun - ended) <= 0) return;
  const Noted call = call_at(begun);
  ledger.begin(call.ticket, call.signature.elements, call.signature.rest);
  if (const int missing = first_missing(); missing >= 0 && joined_ns_ != 0) ledger.wait(missing);
}

// Whether the rank has not joined the call in which this rank waits.
bool CudaWatch::is_missing(int rank) const {
  const int own = setup_.bootstrap->rank();
  if (rank == own) return false;
  const RankPage* const pages = setup_.shared->pages();
  if (setup_.mode == MeetingMode::kLeader) return load(pages[rank].arrived) == 0;
  return static_cast<std::int32_t>(load(pages[rank].collectives) - load(pages[own].collectives)) < 0;
}

int CudaWatch::first_missing() const {
  for (int rank = 0; rank < setup_.bootstrap->nranks(); ++rank) {
    if (is_missing(rank)) return rank;
  }
  return -1;
}

void CudaWatch::check_progress(std::uint32_t finished, std::uint32_t begun) {
  const std::int64_t now = base::now_ns();
  const bool joined = begun != finished;
  if (!joined || finished != last_finished_) joined_ns_ = joined ? now : 0;
  else if (joined_ns_ == 0) joined_ns_ = now;
  last_finished_ = finished;
  if (!joined) return;
  const int own = setup_.bootstrap->rank();
  std::vector<int> missing;
  for (int rank = 0; rank < setup_.bootstrap->nranks(); ++rank) {
    if (!is_missing(rank)) continue;
    missing.push_back(rank);
    if (setup_.bootstrap->failures().has_left(rank))
      return watch_.fail(
          ErrorCode::kRankLost,
          fmt::format("rank {} has left the communicator; rank {} waits for it in {}", rank, own, name_of(begun)));
  }
  if (now - joined_ns_ <= watch_.timeout_ns) return;
  watch_.fail(ErrorCode::kTimeout,
              fmt::format("rank {} waited {:.1f} s in {} for {}", own, static_cast<double>(watch_.timeout_ns) / 1e9,
                          name_of(begun),
                          missing.empty() ? "a peer that has joined" : missing_ranks_text(*setup_.bootstrap, missing)));
}

// In kLeader mode, a kernel of the lower rank of each pair (the worker) copies the messages of the pair. Fails this
// rank if its streams wait too long for a message: as the worker for the other rank's call, otherwise for the worker.
void CudaWatch::check_messages() {
  const int own = setup_.bootstrap->rank(), nranks = setup_.bootstrap->nranks();
  message_waits_.resize(static_cast<std::size_t>(nranks));
  for (int other = 0; other < nranks; ++other) {
    MessageWait& wait = message_waits_[static_cast<std::size_t>(other)];
    const std::uint32_t copied =
        load(setup_.shared->box(own, other).copied) + load(setup_.shared->box(other, own).copied);
    bool waits = false;
    for (const bool sends : {true, false}) {
      const MessageBox& box = sends ? setup_.shared->box(own, other) : setup_.shared->box(other, own);
      if (other >= own) {  // this rank is the worker
        const std::uint64_t expected = load(box.expected), offered = load(box.offered);
        if (expected != 0 && offered != 0 && offered != expected && load(box.expected) == expected) {
          const CallMismatch error(own, Signature::of_message(expected - 1, 0), other,
                                   Signature::of_message(offered - 1, 0));
          return watch_.fail(error.code(), base::bare_text(error));
        }
        waits |= expected != 0 && offered == 0;
      } else {
        waits |= load(box.in_use) != 0;
      }
    }
    if (!waits) wait.since_ns = 0;
    else if (wait.since_ns == 0 || wait.copied != copied) wait.since_ns = base::now_ns();
    wait.copied = copied;
    if (wait.since_ns != 0 && fail_message(other, wait.since_ns)) return;
  }
}

bool CudaWatch::fail_message(int other, std::int64_t since_ns) {
  const int own = setup_.bootstrap->rank();
  if (setup_.bootstrap->failures().has_left(other)) {
    watch_.fail(ErrorCode::kRankLost,
                fmt::format("rank {} has left the communicator; rank {} waits for it in a message", other, own));
    return true;
  }
  if (base::now_ns() - since_ns <= watch_.timeout_ns) return false;
  watch_.fail(ErrorCode::kTimeout, fmt::format("rank {} waited {:.1f} s for rank {} in a message", own,
                                               static_cast<double>(watch_.timeout_ns) / 1e9, other));
  return true;
}

// The kernel compares signatures without their numbers. All ranks number their calls alike, so the number of this
// rank's call is that of both. It is not known if a replayed CUDA graph made the call.
void CudaWatch::report_mismatch() {
  const RankPage& page = own_page();
  std::uint64_t number = 0;
  {
    const base::LockGuard lock(mutex_);
    for (std::uint32_t back = 0; back < noted_.size() && number == 0; ++back) {  // the last call with this signature
      const Signature& noted = noted_[(count_ - back) % noted_.size()].signature;
      const Signature shape = noted.without_number();
      if (shape.elements == page.mismatch_own[0] && shape.rest == page.mismatch_own[1]) number = noted.number();
    }
  }
  const Signature own{page.mismatch_own[0], page.mismatch_own[1] | number};
  const Signature other{page.mismatch_other[0], page.mismatch_other[1] | number};
  const CallMismatch error(setup_.bootstrap->rank(), own, static_cast<int>(page.mismatch_rank), other);
  watch_.fail(error.code(), base::bare_text(error));
}

void CudaWatch::note(const Noted& call, runtime::StreamState& stream, std::uint64_t position) {
  {
    const base::LockGuard lock(mutex_);
    if (call.is_counted) noted_[++count_ % noted_.size()] = call;
    any_captured_ = any_captured_ || call.use == CallUse::kCaptured;
  }
  pending_.note(stream, position, call.use);
}

// Kernels poll `stop`. Memory operations wait for a flag that the host sets, once for each call that is still enqueued
// or replayed later.
void CudaWatch::release_waits() {
  const int own = setup_.bootstrap->rank(), nranks = setup_.bootstrap->nranks();
  if (!stops_) {
    MemoryOperation stop[] = {write_32(&setup_.control->control->stop, 1)};
    put_memory_operations(setup_.control->stream, stop, setup_.control->gpu);
    stops_ = true;
  }
  if (setup_.mode == MeetingMode::kTogether) return;
  // The leader's kernel starts when the flags below are set. It must find `stop` then: otherwise it would use old posts
  // of the missing ranks.
  if (cudaStreamQuery(setup_.control->stream) == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return;  // until the next look
  }
  RankPage* const pages = setup_.shared->pages();
  if (own == 0) {
    for (int rank = 0; rank < nranks; ++rank) store(pages[rank].arrived, std::uint32_t{1});
  }
  store(pages[own].done, std::uint32_t{1});
  for (int rank = 0; rank < nranks; ++rank) {
    for (MessageBox* box : {&setup_.shared->box(rank, own), &setup_.shared->box(own, rank)}) {
      if (rank < own) store(box->in_use, std::uint32_t{0});
      else if (const std::uint64_t expected = load(box->expected); expected != 0) store(box->offered, expected);
    }
  }
}

}  // namespace slip::comm
