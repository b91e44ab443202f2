#include "transport/net/proxy.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/fork_mutex.hpp"

namespace slip {
namespace {
constexpr double kSpinUs = 50;        // of who waits, with nothing moving; then others get the core
constexpr double kYieldUs = 300;      // and then it sleeps
constexpr double kThreadSpinUs = 20;  // of the thread, after something moved
constexpr std::int64_t kLookAgainNs = 1'000'000'000;
constexpr std::uintptr_t kPageBytes = 4096;
constexpr std::size_t kMaxRegistered = 16;  // pieces of memory; more only while so many are in use at once
}  // namespace

ProxyLine::ProxyLine(Proxy& proxy, std::unique_ptr<NetSender> sender)
    : proxy_(proxy), sender_(std::move(sender)), line_(sender_.get()) {
  proxy_.add(this);
}

ProxyLine::ProxyLine(Proxy& proxy, std::unique_ptr<NetReceiver> receiver)
    : proxy_(proxy), receiver_(std::move(receiver)), line_(receiver_.get()) {
  proxy_.add(this);
}

ProxyLine::~ProxyLine() { proxy_.remove(this); }

bool ProxyLine::post(std::span<std::byte> bytes, Next next) {
  if (failed()) throw_error();
  const std::uint64_t head = posted();
  if (head - done() == kDepth) return false;
  entry(head).bytes = bytes;
  head_.store(head + 1, std::memory_order_release);  // release: the entry is written
  if (next == Next::kPost) return true;
  static_cast<void>(try_drive());
  full_fence();  // between the head and the flags of the sleepers, who look at the head after they set them
  if (!busy()) return true;
  if (resting_.load(std::memory_order_relaxed)) wake_up_.signal();  // relaxed: ordered by the fence
  else if (next == Next::kCompute && !driven_.load(std::memory_order_relaxed)) proxy_.poke();
  return true;
}

std::size_t ProxyLine::moved(std::uint64_t operation) const { return ring_[operation % kDepth].moved; }

void ProxyLine::throw_error() const { throw Error(*error_); }

void ProxyLine::wait(std::uint64_t count, const Patience& patience) {
  const auto spin = static_cast<std::uint64_t>(kSpinUs * ticks_per_us());
  const auto yield = static_cast<std::uint64_t>(kYieldUs * ticks_per_us());
  std::uint64_t since = ticks();
  attend();
  while (done() < count) {
    const bool went = try_drive();
    const bool aborted = patience.abort && patience.abort->is_set();
    const std::uint64_t now = ticks();
    if (went) since = now;
    if (!failed() && !aborted && now - since < spin) continue;
    const bool late = patience.deadline_ns != 0 && now_ns() >= patience.deadline_ns;
    if (failed() || ((aborted || late) && done() < count)) {
      leave();
      if (failed()) throw_error();
      throw Error(aborted ? Code::kAborted : Code::kTimeout,
                  fmt::format("{}: {} {} of {} are done: {}", peer().text(), done(), sender_ ? "sends" : "receives",
                              count, aborted ? "the wait was aborted" : "it did not come before the deadline"),
                  {});
    }
    if (now - since < yield) yield_thread();
    else rest(patience);
  }
  leave();
}

// Sleeps until the line can move, something was posted, or somebody else moved it.
void ProxyLine::rest(const Patience& patience) {
  std::vector<pollfd> watched;
  resting_.store(true, std::memory_order_relaxed);
  full_fence();  // resting_ before the looks at what there is
  lock_.lock();
  const bool unstarted = started_ < head_.load(std::memory_order_acquire);
  line_->watch(watched);
  lock_.unlock();
  const std::uint64_t known = done();
  watched.push_back({wake_up_.descriptor(), POLLIN, 0});
  const std::int64_t again = now_ns() + kLookAgainNs;
  const bool sooner = patience.deadline_ns != 0 && patience.deadline_ns < again;
  if (!unstarted && !failed() && known == done())
    wait_for_any(watched, {sooner ? patience.deadline_ns : again, patience.abort});
  resting_.store(false, std::memory_order_relaxed);
  wake_up_.drain();
}

void ProxyLine::leave() {
  driven_.store(false, std::memory_order_relaxed);
  full_fence();  // between this and the thread's flag: it looks at driven_ after it set that
  if (busy()) proxy_.poke();
}

bool ProxyLine::try_drive() {
  if (failed() || !lock_.try_lock()) return false;
  bool went = false;
  try {
    went = move();
  } catch (const Error& error) {
    error_.emplace(error);
    failed_.store(true, std::memory_order_release);  // release: the error is written
    went = true;
  }
  lock_.unlock();
  if (!went) return false;
  full_fence();  // between what was counted and the flag of who rests
  if (resting_.load(std::memory_order_relaxed)) wake_up_.signal();
  return true;
}

// By the thread of the proxy.
bool ProxyLine::drive_and_tell() {
  const std::uint64_t before = done();
  if (!try_drive()) return false;
  if (done() == before && !failed()) return true;
  const std::lock_guard lock(lock_);
  if (sleeper_) sleeper_->wake_up();
  return true;
}

void ProxyLine::tell(Sleeper* sleeper) {
  const std::lock_guard lock(lock_);
  sleeper_ = sleeper;
}

bool ProxyLine::drive() {
  const bool went = try_drive();
  if (failed()) throw_error();
  return went;
}

bool ProxyLine::watch(std::vector<pollfd>& all) {
  if (failed() || !lock_.try_lock()) return false;
  const bool started = started_ == head_.load(std::memory_order_acquire);  // acquire: as in move()
  line_->watch(all);
  lock_.unlock();
  return started;
}

bool ProxyLine::move() {
  bool went = false;
  const std::uint64_t head = head_.load(std::memory_order_acquire);  // acquire: the entries below it are written
  while (started_ < head && start(entry(started_), started_ + 1 < head)) ++started_;
  std::uint64_t done = done_.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  if (done < started_ && !entry(done).request->done) went = line_->progress();
  const std::uint64_t before = done;
  while (done < started_ && entry(done).request->done) {
    Entry& one = entry(done);
    std::size_t moved = one.bytes.size();
    line_->test(one.request, std::span(&moved, sender_ ? 0 : 1));
    one.moved = moved;
    ++done;
  }
  if (done != before) done_.store(done, std::memory_order_release);  // release: the bytes and `moved` are there
  return went || done != before;
}

bool ProxyLine::start(Entry& one, bool more) {
  const NetPart part{one.bytes.data(), one.bytes.size(), 0, registered(one.bytes)};
  one.request = sender_ ? sender_->isend(part, more) : receiver_->irecv(std::span(&part, 1));
  return one.request != nullptr;
}

const NetMemory* ProxyLine::registered(std::span<std::byte> bytes) {
  if (bytes.empty()) return nullptr;
  const std::uint64_t done = done_.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  Registered* oldest = nullptr;
  for (Registered& one : registered_) {
    const std::span<std::byte> its = one.memory->bytes();
    if (bytes.data() >= its.data() && bytes.data() + bytes.size() <= its.data() + its.size()) {
      one.last_used = started_;
      return one.memory.get();
    }
    if (one.last_used < done && (!oldest || one.last_used < oldest->last_used)) oldest = &one;
  }
  if (!oldest || registered_.size() < kMaxRegistered) oldest = &registered_.emplace_back();
  // Whole pages: what is beside them will be used, too.
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / kPageBytes * kPageBytes;
  const auto end =
      (reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) + kPageBytes - 1) / kPageBytes * kPageBytes;
  *oldest = {line_->register_memory({reinterpret_cast<std::byte*>(begin), end - begin}), started_};
  return oldest->memory.get();
}

Proxy::Proxy() {
  thread_.start("slip proxy", [this] { live(); });
}

Proxy::~Proxy() {
  stopping_.store(true, std::memory_order_release);  // release: pairs with live()
  wake_up_.signal();
  thread_.join();
}

Proxy& Proxy::of_process() {
  static ForkMutex mutex;
  static Proxy* proxy = nullptr;  // never deleted: lines of others may outlive any order of ends
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != ::getpid()) {
    proxy = new Proxy;
    owner = ::getpid();
  }
  return *proxy;
}

void Proxy::add(ProxyLine* line) {
  const std::lock_guard lock(mutex_);
  lines_.push_back(line);
}

void Proxy::remove(ProxyLine* line) {
  const std::lock_guard lock(mutex_);
  lines_.erase(std::find(lines_.begin(), lines_.end(), line));
}

void Proxy::poke() {
  // relaxed, both: the caller's fence orders what it left before this, and the thread's what it looks at after it.
  if (asleep_.load(std::memory_order_relaxed) && asleep_.exchange(false, std::memory_order_relaxed)) wake_up_.signal();
}

void Proxy::live() {
  set_time_slice(TimeSlice::kShort);
  const auto spin = static_cast<std::uint64_t>(kThreadSpinUs * ticks_per_us());
  std::uint64_t since = ticks() - spin;
  while (!stopping_.load(std::memory_order_acquire)) {  // acquire: pairs with the destructor
    if (turn()) since = ticks();
    else if (ticks() - since >= spin) sleep();
  }
}

bool Proxy::turn() {
  const std::lock_guard lock(mutex_);
  bool went = false;
  for (ProxyLine* line : lines_) {
    // relaxed: a hint only
    if (!line->driven_.load(std::memory_order_relaxed) && line->busy()) went = line->drive_and_tell() || went;
  }
  return went;
}

// A line that is driven, or whose lock is held, is left out: who drives it pokes when it stops.
void Proxy::sleep() {
  std::vector<pollfd> watched{{wake_up_.descriptor(), POLLIN, 0}};
  asleep_.store(true, std::memory_order_relaxed);
  full_fence();  // asleep_ before the looks at the lines; see poke()
  bool unstarted = false;
  {
    const std::lock_guard lock(mutex_);
    for (ProxyLine* line : lines_) {
      if (line->driven_.load(std::memory_order_relaxed) || !line->busy() || !line->lock_.try_lock()) continue;
      unstarted = unstarted || line->started_ < line->head_.load(std::memory_order_acquire);
      line->line_->watch(watched);
      line->lock_.unlock();
    }
  }
  if (!unstarted) wait_for_any(watched, {now_ns() + kLookAgainNs, nullptr});
  asleep_.store(false, std::memory_order_relaxed);
  wake_up_.drain();
}

}  // namespace slip
