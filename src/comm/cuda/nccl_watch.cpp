#include "comm/cuda/nccl_watch.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/wait.hpp"
#include "comm/diagnose/stalls.hpp"

namespace slip::comm {
namespace {

// After kAskAfterNs in one call this rank asks the others for their calls; kAskPauseNs is the longest pause until it
// asks again. An answer takes less than a millisecond.
constexpr std::int64_t kAskAfterNs = 200'000'000, kAskPauseNs = 10'000'000'000;
constexpr std::chrono::milliseconds kAnswerTime{50};
// A rank leaves only after its own calls have ended. If a call still waits for a departed rank this long after this
// rank noticed the departure, the call waits for ever.
constexpr std::int64_t kDepartedNs = 1'000'000'000;
// A replayed CUDA graph repeats the states of its calls. So before a call is considered stuck, its state is read again
// and again for this time.
constexpr std::int64_t kCloseLookNs = 1'000'000'000;

// acquire: pairs with the write of the stream, which the device makes visible to the system.
std::uint32_t load(const std::uint32_t& flag) { return __atomic_load_n(&flag, __ATOMIC_ACQUIRE); }

bool runs(std::uint32_t state) { return (state & 1) != 0; }

}  // namespace

void NcclWatch::start(const Setup& setup, GpuWatch watch) {
  setup_ = setup;
  watch_ = std::move(watch);
  thread_.start(
      "slip-nccl-watch", setup_.gpu, [this] { look(); }, watch_.fail);
}

// The streams get the error before the abort ends their calls: a thread that waits for a stream then throws it.
void NcclWatch::look() {
  if (failed_) return;
  if (const std::optional<Error> error = watch_.error()) {
    streams_.fail(*error);
    failed_ = true;
    return setup_.connection->abort();
  }
  if (const std::optional<Error> error = setup_.connection->error()) throw setup_.bootstrap->with_cause(*error);
  check_inside();
  const std::uint32_t state = load(setup_.page->state);
  keep_ledger(state);
  check_progress(state);
}

// A thread that is inside a call waits there until NCCL has connected to the other ranks. The abort above ends its
// wait.
void NcclWatch::check_inside() {
  const std::int64_t since = setup_.connection->inside_since_ns();
  if (since == 0) return;
  if (since != inside_wait_.since_ns) inside_wait_ = wait_from(since);
  Noted call;
  {
    const base::LockGuard lock(mutex_);
    call = noted_[last_ticket_ % noted_.size()];
  }
  check(inside_wait_, call);
}

Error NcclWatch::fail(const Error& error) const {
  if (std::optional<Error> first = watch_.error()) return *first;
  watch_.fail(error.code(), base::bare_text(error));
  const std::optional<Error> first = watch_.error();
  return first ? *first : error;
}

NcclWatch::Noted NcclWatch::call_of(std::uint32_t state) const {
  const base::LockGuard lock(mutex_);
  return noted_[(state >> 1) % noted_.size()];
}

void NcclWatch::keep_ledger(std::uint32_t state) {
  if (state == last_state_) return;
  transport::LedgerSlot& ledger = *watch_.ledger;
  ledger.wait_over();
  const Noted call = call_of(state);
  ledger.begin(call.ticket, call.signature.elements, call.signature.rest);
  if (!runs(state)) ledger.end(call.ticket);
}

NcclWatch::PeerWait NcclWatch::wait_from(std::int64_t since_ns) {
  return {since_ns, since_ns + kAskAfterNs, kAskAfterNs};
}

void NcclWatch::check_progress(std::uint32_t state) {
  if (state != last_state_) {
    last_state_ = state;
    wait_ = wait_from(base::now_ns());
  }
  if (!runs(state)) return;
  const Noted call = call_of(state);
  try {
    check(wait_, call);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kMismatch || !changes_soon(state)) throw;
    wait_ = wait_from(base::now_ns());
  }
}

bool NcclWatch::changes_soon(std::uint32_t state) const {
  const std::int64_t until = base::now_ns() + kCloseLookNs;
  for (base::Backoff backoff(base::kKernelFlagWait); base::now_ns() < until && !watch_.error() && !thread_.ends();
       backoff.pause()) {
    if (load(setup_.page->state) != state) return true;
  }
  return false;
}

CallHistory::Snapshot NcclWatch::own_calls() const {
  CallHistory::Snapshot result;
  const base::LockGuard lock(mutex_);
  for (const Noted& call : noted_) {
    if (call.ticket == 0 || call.signature.kind() == Collective::kMessage) continue;
    Signature& last = result.last[call.signature.number() % CallHistory::kCalls];
    if (last.number() < call.signature.number()) last = call.signature;
  }
  return result;
}

DepartedCalls NcclWatch::departed_calls() const {
  return
      [&failures = std::as_const(*setup_.bootstrap).failures()](int rank) { return failures.calls_of_departed(rank); };
}

std::vector<int> NcclWatch::compare_calls(const Noted& call) const {
  const int own = setup_.bootstrap->rank();
  std::vector<int> others = call.peers;
  if (call.signature.kind() == Collective::kMessage) {
    std::erase(others, own);
    return others;
  }
  for (int rank = 0; rank < setup_.bootstrap->nranks(); ++rank) {
    if (rank != own) others.push_back(rank);
  }
  others = awaited_ranks(call.signature, std::move(others), departed_calls());
  const auto answers = setup_.bootstrap->ask(others, kAnswerTime);
  const CallHistory::Snapshot calls = own_calls();
  std::erase_if(others, [&](int rank) {
    const auto found = answers.find(rank);
    if (found == answers.end()) return false;
    const std::optional<CallHistory::Snapshot> theirs = CallMonitor::history_in(found->second);
    if (!theirs) return false;
    if (const auto difference = first_difference(calls, *theirs))
      throw CallMismatch(own, difference->first, rank, difference->second);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(theirs->count) - call.signature.number()) >= 0;
  });
  return others;
}

void NcclWatch::check(PeerWait& wait, const Noted& call) const {
  if (const std::optional<Error> error = watch_.error()) throw Error(*error);
  const std::int64_t now = base::now_ns(), waited = now - wait.since_ns;
  const int own = setup_.bootstrap->rank();
  const bool is_over = waited > watch_.timeout_ns;
  if (now < wait.ask_ns && !is_over) return;
  const std::vector<int> missing = compare_calls(call);
  wait.ask_pause_ns = std::min(2 * wait.ask_pause_ns, kAskPauseNs);
  wait.ask_ns = base::now_ns() + std::min(wait.ask_pause_ns, std::max<std::int64_t>(watch_.timeout_ns - waited, 0));
  if (!missing.empty()) watch_.ledger->wait(missing.front());
  if (const std::optional<int> departed = find_departed(call.signature, missing, departed_calls())) {
    if (wait.departed_ns == 0) wait.departed_ns = now;
    if (is_over || now - wait.departed_ns > kDepartedNs)
      base::fail(ErrorCode::kRankLost, {}, "rank {} has left the communicator; rank {} waits for it in {}", *departed,
                 own, call.signature.text());
    wait.ask_ns = std::min(wait.ask_ns, wait.departed_ns + kDepartedNs + 1);
  }
  if (is_over)
    base::fail(ErrorCode::kTimeout, {}, "rank {} waited {:.1f} s in {} for {}", own,
               static_cast<double>(watch_.timeout_ns) / 1e9, call.signature.text(),
               missing.empty() ? "NCCL: all ranks have made the call" : missing_ranks_text(*setup_.bootstrap, missing));
}

void NcclWatch::note(const Noted& call) {
  const base::LockGuard lock(mutex_);
  noted_[call.ticket % noted_.size()] = call;
  last_ticket_ = call.ticket;
}

}  // namespace slip::comm
