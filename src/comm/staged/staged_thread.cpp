#include "comm/staged/staged_thread.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/wait.hpp"

namespace slip::comm {
namespace {

// While no part runs, the thread checks for an error of the communicator at least this often.
constexpr std::int64_t kErrorCheckNs = 1'000'000;
// After a part ran, or a call was enqueued, the next part is likely to be posted soon. For this long the thread polls
// and yields, and does not sleep.
constexpr std::int64_t kBusyNs = 1'000'000;
// Then it sleeps between polls. A sleep lasts 1/kSleepShare of the time since the thread last had work, so a late part
// is delayed by about that share. A launch of a CUDA graph does not call add(), so the thread must always poll for
// captured calls. Meanwhile it sleeps longer, to use less of its core.
constexpr std::int64_t kSleepShare = 32;
constexpr std::int64_t kMinSleepNs = 20'000, kMaxSleepNs = 100'000, kMaxSleepCapturedNs = 500'000;
constexpr int kPollsPerYield = 64;
// While a part runs, the thread polls this often for a failure, because a failure sends no notification.
constexpr std::int64_t kFailurePollNs = 2'000'000;

// Access to flags in memory that the device also accesses. acquire: the data that the device wrote before is visible.
// release: the device sees the data that this thread and the links wrote before.
std::uint32_t load(const std::uint32_t& flag) { return __atomic_load_n(&flag, __ATOMIC_ACQUIRE); }
void store(std::uint32_t& flag, std::uint32_t value) { __atomic_store_n(&flag, value, __ATOMIC_RELEASE); }

}  // namespace

bool HostCalls::run(const StagedCall& call, std::uint64_t index, const StagingSlot& slot) {
  if (index == 0) ++calls_begun_;
  std::visit([&](const auto& one) { prepare(one, index, slot); }, call);
  run_.set_part({whole_, calls_begun_, index + 1 == parts_of(call)});
  while (!run_.advance(runtime::Exchange::By::kWaiter)) wait_until_it_can_advance();
  const bool failed = run_.failed();
  try {
    run_.finish(nullptr);
  } catch (const std::exception&) {  // advance() has reported it to all ranks
  }
  return !failed;
}

void HostCalls::prepare(const StagedCollective& call, std::uint64_t index, const StagingSlot& slot) {
  if (index == 0) {
    whole_ = Signature::of(call.call(), ++number_);
    ranks_.monitor->history.add(whole_, number_);
  }
  const Call part = call.part(index);
  run_.plan().emplace<MessageProgramBuilder>(ranks_.plan_of(part, call.in_place(), explained_));
  // relaxed: only this thread changes next_ticket, because it runs all calls of the context
  run_.prepare(part, context_.next_ticket.load(std::memory_order_relaxed), number_,
               call.in_place() ? slot.input : slot.output, slot.input);
}

void HostCalls::prepare(const StagedMessages& call, std::uint64_t index, const StagingSlot& slot) {
  if (index == 0) whole_ = Signature::of_message(call.bytes(), 0);
  run_.messages.clear();
  for (const StagedMessages::Piece& piece : call.pieces(index)) {
    const UserMessage& message = call.message(piece);
    run_.messages.push_back({message.out, message.rank, (message.out ? slot.input : slot.output) + piece.slot_offset,
                             piece.bytes, piece.offset, message.bytes});
  }
  run_.plan().emplace<MessageProgramBuilder>(run_.messages);
  run_.prepare({.kind = Collective::kMessage, .type = DataType::kU8, .elements = call.bytes()},
               context_.next_ticket.load(std::memory_order_relaxed), 0);  // relaxed: as above
}

// The proxy wakes this thread when messages arrive. For failures the thread polls, see kFailurePollNs.
void HostCalls::wait_until_it_can_advance() {
  const bool is_notified = run_.subscribe(wake_);
  // The first poll comes after the subscription: earlier events sent no notification.
  for (base::Backoff backoff(base::kPartWait); !run_.can_advance();) {
    if (is_notified) static_cast<void>(wake_.parker.park(base::now_ns() + kFailurePollNs));
    else backoff.pause();
  }
}

void StagedThread::start(Setup setup) {
  setup_ = std::move(setup);
  host_calls_.emplace(*setup_.ranks, *setup_.calls);
  constexpr bool kPrecise = true;  // its sleeps are short
  thread_.start(
      "slip-staged", [this] { run(); }, kPrecise);
}

void StagedThread::stop() noexcept {
  if (!thread_.started()) return;
  ends_.store(true, std::memory_order_relaxed);
  parker_.unpark();
  thread_.join();
  thread_ = {};
}

std::uint32_t StagedThread::add(StagedCall call, Use use) {
  std::uint32_t id = 0;
  {
    const base::LockGuard lock(mutex_);
    if (use == Use::kCaptured) {
      any_captured_.store(true, std::memory_order_relaxed);
      const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& one) {
        return one->call && one->use == Use::kCaptured && *one->call == call;
      });
      if (found != entries_.end()) return static_cast<std::uint32_t>(found - entries_.begin()) + 1;
    }
    if (free_.empty()) {
      entries_.push_back(std::make_unique<Entry>());
      free_.push_back(static_cast<std::uint32_t>(entries_.size()));
    }
    id = free_.back();
    free_.pop_back();
    *entries_[id - 1] = {std::move(call), use};
  }
  // Only while expected_ is 0 can the thread sleep in the parker. Otherwise it polls and needs no wake-up.
  if (use == Use::kOnce && expected_.fetch_add(1, std::memory_order_relaxed) == 0) parker_.unpark();
  return id;
}

void StagedThread::remove(std::uint32_t id) {
  const base::LockGuard lock(mutex_);
  Entry& entry = *entries_[id - 1];
  if (entry.use == Use::kCaptured) return;
  entry.call.reset();
  free_.push_back(id);
  expected_.fetch_sub(1, std::memory_order_relaxed);
}

const StagedCall* StagedThread::find(std::uint32_t id) {
  const base::LockGuard lock(mutex_);
  if (id > entries_.size() || !entries_[id - 1]->call) return nullptr;
  return &*entries_[id - 1]->call;
}

void StagedThread::run() {
  base::set_time_slice(base::TimeSlice::kShort);
  while (!ends_.load(std::memory_order_relaxed)) {
    if (failed_) {
      release();
      base::sleep_ns(kErrorCheckNs);
      continue;
    }
    try {
      if (const std::optional<Error> error = setup_.error()) {
        failed_ = true;  // before the next line, which may throw: the streams must be released even then
        setup_.fail_streams(*error);
      } else if (const std::uint32_t id = poll(0); id != 0) {
        run_call(id);
      }
    } catch (const Error& error) {
      setup_.fail(error.code(), base::bare_text(error));
    } catch (const std::exception& error) {
      setup_.fail(ErrorCode::kLaunchFailed, error.what());
    }
  }
}

void StagedThread::run_call(std::uint32_t id) {
  const StagedCall* const call = find(id);
  const std::uint64_t parts = call ? parts_of(*call) : 0;
  for (std::uint64_t part = 0; part < parts; ++part) {
    const std::uint64_t slot = part % kStagingSlots;
    const std::uint32_t posted = part == 0 ? id : await_part(slot);
    if (posted == 0) return;  // the communicator failed
    if (posted != id) break;
    if (!host_calls_->run(*call, part, setup_.memory.slot(slot))) return;
    StagingFlags& flags = setup_.memory.flags(slot);
    store(flags.posted, 0);
    busy_until_ns_ = base::now_ns() + kBusyNs;
    const bool is_last = part + 1 == parts;
    if (is_last) remove(id);  // before the stream goes on: it may post the next call at once
    store(flags.done, 1);
    if (is_last) return;
  }
  setup_.fail(
      ErrorCode::kInvalidValue,
      fmt::format("rank {}: a call began before the previous one had ended: the program must order the launches "
                  "of its CUDA graphs and its other calls of a communicator",
                  setup_.ranks->bootstrap.rank()));
}

// Waits until the stream posts the next part of a call. Returns 0 if the communicator failed or the thread must stop.
// Before it posts, the stream only does copies, so the timeout for waits for other ranks is long enough.
std::uint32_t StagedThread::await_part(std::uint64_t slot) {
  const std::int64_t timeout = setup_.calls->timeout_ns, began = base::now_ns();
  for (;;) {
    if (const std::uint32_t id = poll(slot); id != 0) return id;
    if (ends_.load(std::memory_order_relaxed) || setup_.error()) return 0;
    if (base::now_ns() - began > timeout)
      base::fail(ErrorCode::kTimeout, {}, "rank {} waited {:.1f} s until its stream posted the next part of a call",
                 setup_.ranks->bootstrap.rank(), static_cast<double>(timeout) / 1e9);
  }
}

// Waits for a part in the slot and returns the id of its call. Returns 0 after kErrorCheckNs, or if the thread must
// stop. No wait policy of base/wait.hpp fits: the sleeps grow with the time without work, and depend on enqueued calls.
std::uint32_t StagedThread::poll(std::uint64_t slot) {
  const std::int64_t until = base::now_ns() + kErrorCheckNs;
  const std::uint32_t& posted = setup_.memory.flags(slot).posted;
  const int polls = setup_.calls->oversubscribed ? 1 : kPollsPerYield;
  for (;;) {
    for (int i = 0; i < polls; ++i) {
      if (const std::uint32_t id = load(posted); id != 0) return id;
      base::cpu_relax();
    }
    const std::int64_t now = base::now_ns();
    if (now > until || ends_.load(std::memory_order_relaxed)) return 0;
    const std::int64_t share = (now - busy_until_ns_) / kSleepShare;
    if (now < busy_until_ns_) base::yield_thread();
    else if (expected_.load(std::memory_order_relaxed) > 0) base::sleep_ns(std::clamp(share, kMinSleepNs, kMaxSleepNs));
    else if (parker_.park(any_captured_.load(std::memory_order_relaxed)
                              ? now + std::clamp(share, kMinSleepNs, kMaxSleepCapturedNs)
                              : until))
      busy_until_ns_ = base::now_ns() + kBusyNs;
  }
}

// Ends the waits of the streams. After a failure the thread calls it repeatedly, because the stream waits once for each
// part that is still enqueued or is replayed later.
void StagedThread::release() {
  for (std::uint64_t slot = 0; slot < kStagingSlots; ++slot) {
    store(setup_.memory.flags(slot).posted, 0);
    store(setup_.memory.flags(slot).done, 1);
  }
}

}  // namespace slip::comm
