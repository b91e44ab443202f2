#include "transport/net/proxy.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/memory_end.hpp"
#include "base/wait.hpp"

namespace slip::transport {
namespace {
constexpr double kChorePauseUs = 1000;     // the proxy calls the chores at least this often, even if connections move
constexpr double kCheckPauseUs = 900'000;  // between two checks of all connections; below kNetMaxSleepNs
// How long the proxy sleeps if another thread holds the lock of a connection, which it holds for one attempt only.
constexpr std::int64_t kLockedPauseNs = 50'000;

// The time between two attempts if the kernel refuses to poll.
constexpr std::int64_t kNoPollPauseNs = 500'000;

// The T of this process. A forked child makes its own, because another thread of the parent may hold a lock of the old
// one for ever.
template <class T>
T& own_of_process() {
  struct Current {
    base::ForkMutex mutex;
    T* object SLIP_GUARDED_BY(mutex) = nullptr;  // never deleted: static objects may hold connections until the end
    pid_t owner SLIP_GUARDED_BY(mutex) = 0;
  };
  Current& current = base::process_wide<Current>();
  const base::LockGuard lock(current.mutex);
  if (current.owner != ::getpid()) {
    current.object = new T;
    current.owner = ::getpid();
  }
  return *current.object;
}

// The connections of this process whose network keeps the addresses of registered memory.
struct KeepingConnections {
  base::Mutex mutex;
  std::vector<ProxyConnection*> all SLIP_GUARDED_BY(mutex);

  static KeepingConnections& of_process() { return own_of_process<KeepingConnections>(); }
};

}  // namespace

ProxyConnection::ProxyConnection(Proxy& proxy, NetSender* sender, std::unique_ptr<NetConnection> connection)
    : proxy_(proxy), registrations_(*connection), connection_(std::move(connection)), sender_(sender) {
  if (connection_->keeps_addresses()) {
    KeepingConnections& keeping = KeepingConnections::of_process();
    const base::LockGuard lock(keeping.mutex);
    keeping.all.push_back(this);
    base::set_memory_end_listener(&ProxyConnection::on_memory_end);
  }
  proxy_.add(this);
}

ProxyConnection::~ProxyConnection() {
  if (proxy_.process_ != ::getpid()) return;
  proxy_.remove(this);
  if (!connection_->keeps_addresses()) return;
  KeepingConnections& keeping = KeepingConnections::of_process();
  const base::LockGuard lock(keeping.mutex);
  std::erase(keeping.all, this);
}

// Waits for the driving thread at most as long as one attempt to move bytes takes.
void ProxyConnection::on_memory_end(const void* data, std::size_t bytes) noexcept {
  KeepingConnections& keeping = KeepingConnections::of_process();
  const base::LockGuard all_lock(keeping.mutex);
  for (ProxyConnection* one : keeping.all) {
    const base::LockGuard lock(one->lock_);
    // relaxed: written under this lock only
    one->registrations_.end({static_cast<const std::byte*>(data), bytes}, one->done_.load(std::memory_order_relaxed));
  }
}

bool ProxyConnection::post(std::span<std::byte> bytes, Next next) {
  if (failed()) throw Error(*error_);
  const std::uint64_t head = posted();
  if (head - done() == kDepth) return false;
  entry(head).bytes = bytes;
  head_.store(head + 1, std::memory_order_release);  // release: a thread that sees the new head sees the entry
  if (next == Next::kPost) return true;
  static_cast<void>(try_drive());
  base::full_fence();  // orders the head before the flags below: a sleeping thread sets its flag, then reads the head
  if (!busy()) return true;
  if (sleeping_.take()) wake_up_.signal();
  else if (next == Next::kCompute && !driven_.load(std::memory_order_relaxed)) proxy_.wake();
  return true;
}

void ProxyConnection::wait(std::uint64_t count, const Deadline& deadline) {
  base::IdleWait idle(base::kNetWait);
  begin_drive();
  while (done() < count) {
    const bool moved_some = try_drive();
    const bool aborted = deadline.abort && deadline.abort->is_set();
    const base::IdleWait::Next next = idle.next(moved_some);
    if (!failed() && !aborted && next == base::IdleWait::Next::kSpin) continue;
    const bool late = deadline.at_ns != 0 && base::now_ns() >= deadline.at_ns;
    if (failed() || ((aborted || late) && done() < count)) {
      end_drive();
      if (failed()) throw Error(*error_);
      base::fail(aborted ? ErrorCode::kAborted : ErrorCode::kTimeout, {}, "{}: {} {} of {} are done: {}", peer().text(),
                 done(), sender_ ? "sends" : "receives", count,
                 aborted ? "the wait was aborted" : "the others were not done before the deadline");
    }
    if (next == base::IdleWait::Next::kSleep) sleep(count, deadline);
    else base::yield_thread();
  }
  end_drive();
}

// Sleeps until the connection can move bytes, an operation was posted, or another thread moved bytes. Does not sleep if
// `count` operations are done: a thread that completed the last of them before sleeping_ was set did not wake this one.
void ProxyConnection::sleep(std::uint64_t count, const Deadline& deadline) {
  std::vector<pollfd> watched;
  sleeping_.set();  // before the reads below; post() and try_drive() do the reverse
  lock_.lock();
  const bool unstarted = started_ < head_.load(std::memory_order_acquire);
  const std::int64_t limit_ns = connection_->watch(watched);
  lock_.unlock();
  watched.push_back({wake_up_.descriptor(), POLLIN, 0});
  if (!unstarted && limit_ns > 0 && !failed() && done() < count) wait_for_any(watched, deadline.within(limit_ns));
  sleeping_.clear();
  wake_up_.drain();
}

void ProxyConnection::end_drive() {
  driven_.store(false, std::memory_order_relaxed);
  base::full_fence();  // orders driven_ before the proxy's asleep_: the proxy sets asleep_, then reads driven_
  if (busy()) proxy_.wake();
}

bool ProxyConnection::try_drive() {
  if (failed() || !lock_.try_lock()) return false;
  if (failed()) {  // check_network() found the error before this thread got the lock: error_ must not be written again
    lock_.unlock();
    return false;
  }
  bool moved_some = false;
  try {
    moved_some = move();
  } catch (const Error& error) {
    error_.emplace(error);
    failed_.store(true, std::memory_order_release);  // release: a thread that sees failed_ sees error_
    moved_some = true;
  }
  lock_.unlock();
  if (!moved_some) return false;
  base::full_fence();  // orders done_ before sleeping_: a sleeping thread sets its flag, then reads done_
  if (sleeping_.take()) wake_up_.signal();
  return true;
}

bool ProxyConnection::drive_and_notify() {
  const std::uint64_t before = done();
  if (!try_drive()) return false;
  if (done() == before && !failed()) return true;
  const base::LockGuard lock(lock_);
  if (subscriber_) subscriber_->wake_up();
  return true;
}

void ProxyConnection::check_network() {
  if (failed() || !lock_.try_lock()) return;
  try {
    if (!failed()) connection_->check();  // another thread may have written error_ before this one got the lock
  } catch (const Error& error) {
    error_.emplace(error);
    failed_.store(true, std::memory_order_release);  // release: a thread that sees failed_ sees error_
    if (subscriber_) subscriber_->wake_up();
  }
  lock_.unlock();
  base::full_fence();  // orders failed_ before sleeping_: a sleeping thread sets its flag, then reads failed_
  if (failed() && sleeping_.take()) wake_up_.signal();
}

void ProxyConnection::set_subscriber(base::Subscriber* subscriber) {
  const base::LockGuard lock(lock_);
  subscriber_ = subscriber;
}

bool ProxyConnection::drive() {
  const bool moved_some = try_drive();
  if (failed()) throw Error(*error_);
  return moved_some;
}

std::int64_t ProxyConnection::watch(std::vector<pollfd>& all) {
  if (failed() || !lock_.try_lock()) return 0;
  const bool started = started_ == head_.load(std::memory_order_acquire);  // acquire: as in move()
  const std::int64_t limit_ns = connection_->watch(all);
  lock_.unlock();
  return started ? limit_ns : 0;
}

bool ProxyConnection::move() {
  bool moved_some = false;
  const std::uint64_t head = head_.load(std::memory_order_acquire);  // acquire: sees the entries before this head
  while (started_ < head && start(entry(started_), started_ + 1 < head)) ++started_;
  std::uint64_t done = done_.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  if (done < started_ && !entry(done).request->done) moved_some = connection_->progress();
  const std::uint64_t before = done;
  while (done < started_ && entry(done).request->done) {
    Entry& one = entry(done);
    std::size_t moved = one.bytes.size();
    connection_->test(one.request, std::span(&moved, sender_ ? 0 : 1));
    one.moved = moved;
    ++done;
  }
  // release: a thread that sees the count sees the bytes and `moved`.
  if (done != before) done_.store(done, std::memory_order_release);
  return moved_some || done != before;
}

bool ProxyConnection::start(Entry& one, bool more) {
  const std::uint64_t done = done_.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  const NetPart part{one.bytes.data(), one.bytes.size(), 0, registrations_.find(one.bytes, started_, done)};
  one.request =
      sender_ ? sender_->isend(part, more) : static_cast<NetReceiver&>(*connection_).irecv(std::span(&part, 1));
  return one.request != nullptr;
}

Proxy::Proxy() : process_(::getpid()) {
  thread_.start("slip proxy", [this] { run(); });
}

Proxy::~Proxy() {
  stopping_.store(true, std::memory_order_release);  // release: pairs with the acquire in run()
  wake_up_.signal();
  thread_.join();
}

Proxy& Proxy::of_process() { return own_of_process<Proxy>(); }

void Proxy::add(ProxyConnection* one) {
  const base::LockGuard lock(mutex_);
  connections_.push_back(one);
}

void Proxy::remove(ProxyConnection* one) {
  const base::LockGuard lock(mutex_);
  connections_.erase(std::find(connections_.begin(), connections_.end(), one));
}

void Proxy::add(ProxyChore* chore) {
  const base::LockGuard lock(mutex_);
  chores_.push_back(chore);
}

void Proxy::remove(ProxyChore* chore) {
  const base::LockGuard lock(mutex_);
  std::erase(chores_, chore);
}

void Proxy::wake() {
  if (asleep_.take()) wake_up_.signal();  // the caller's fence orders its operation before this
}

void Proxy::run() {
  base::set_time_slice(base::TimeSlice::kShort);
  const auto chore_pause = static_cast<std::uint64_t>(kChorePauseUs * base::ticks_per_us());
  const auto check_pause = static_cast<std::uint64_t>(kCheckPauseUs * base::ticks_per_us());
  base::IdleWait idle(base::kProxyWait);
  std::uint64_t tended = base::ticks(), checked = tended;
  std::vector<pollfd> unused;
  while (!stopping_.load(std::memory_order_acquire)) {  // acquire: pairs with the destructor
    const bool moved_some = drive_all();
    const std::uint64_t now = base::ticks();
    if (now - checked >= check_pause) {
      check_all();
      checked = now;
    }
    if (idle.next(moved_some, now) == base::IdleWait::Next::kSleep) {
      sleep();
      tended = base::ticks();
    } else if (now - tended >= chore_pause) {  // connections keep the proxy busy, so it does not reach sleep()
      static_cast<void>(tend_all(unused));
      unused.clear();
      tended = now;
    }
  }
}

std::int64_t Proxy::tend_all(std::vector<pollfd>& watched) {
  const base::LockGuard lock(mutex_);
  std::int64_t next_ns = 0;
  for (ProxyChore* one : chores_) {
    const std::int64_t at_ns = one->tend(watched);
    if (at_ns != 0 && (next_ns == 0 || at_ns < next_ns)) next_ns = at_ns;
  }
  return next_ns;
}

bool Proxy::drive_all() {
  const base::LockGuard lock(mutex_);
  bool moved_some = false;
  for (ProxyConnection* one : connections_) {
    // relaxed: a hint only
    if (!one->driven_.load(std::memory_order_relaxed) && one->busy())
      moved_some = one->drive_and_notify() || moved_some;
  }
  return moved_some;
}

void Proxy::check_all() {
  const base::LockGuard lock(mutex_);
  for (ProxyConnection* one : connections_) one->check_network();
}

// Skips a connection that a waiting thread drives: end_drive() wakes the proxy. A thread that holds the lock without
// driving (set_subscriber(), or a single call of drive()) does not wake the proxy. So the proxy looks again soon:
// otherwise it would sleep for kNetMaxSleepNs without the connection's descriptors.
void Proxy::sleep() {
  std::vector<pollfd> watched{{wake_up_.descriptor(), POLLIN, 0}};
  asleep_.set();  // before the reads of the connections; see wake()
  std::int64_t limit_ns = kNetMaxSleepNs;
  {
    const base::LockGuard lock(mutex_);
    for (ProxyConnection* one : connections_) {
      if (one->driven_.load(std::memory_order_relaxed) || !one->busy()) continue;
      if (!one->lock_.try_lock()) {
        limit_ns = std::min(limit_ns, kLockedPauseNs);
        continue;
      }
      const bool unstarted = one->started_ < one->head_.load(std::memory_order_acquire);
      const std::int64_t own_ns = one->connection_->watch(watched);
      limit_ns = unstarted ? 0 : std::min(limit_ns, own_ns);
      one->lock_.unlock();
    }
  }
  const std::int64_t next_ns = tend_all(watched);
  try {
    if (limit_ns > 0) wait_for_any(watched, Deadline{next_ns, nullptr}.within(limit_ns));
  } catch (const Error&) {
    // For example, the program has lowered its limit of descriptors: poll takes no more than that.
    base::sleep_ns(kNoPollPauseNs);
  }
  asleep_.clear();
  wake_up_.drain();
}

namespace {

constexpr std::uintptr_t kPageBytes = 4096;
// The registrations that a connection keeps. If operations once used more at the same time, it keeps that many.
constexpr std::size_t kMaxKept = 16;

// Whole pages: later operations will probably use the neighbouring bytes.
std::span<std::byte> pages_of(std::span<std::byte> bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = first / kPageBytes * kPageBytes;
  const std::uintptr_t end = (first + bytes.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

bool overlap(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.data() < other.data() + other.size() && other.data() < one.data() + one.size();
}

}  // namespace

const NetMemory* Registrations::find(std::span<std::byte> bytes, std::uint64_t operation, std::uint64_t done) {
  if (bytes.empty()) return nullptr;
  Registered* oldest = nullptr;
  for (Registered& one : all_) {
    if (!one.ended && one.memory->contains(bytes.data(), bytes.size())) {
      one.last_used = operation;
      return one.memory.get();
    }
    if (one.last_used < done && (!oldest || (!oldest->ended && (one.ended || one.last_used < oldest->last_used))))
      oldest = &one;
  }
  // The replaced one ends first, because a network may have a limit.
  if (oldest && (oldest->ended || all_.size() >= kMaxKept)) all_.erase(all_.begin() + (oldest - all_.data()));
  std::unique_ptr<NetMemory> memory = connection_.register_memory(pages_of(bytes));
  return all_.emplace_back(Registered{std::move(memory), operation}).memory.get();
}

void Registrations::end(std::span<const std::byte> bytes, std::uint64_t done) {
  std::erase_if(all_, [&](Registered& one) {
    if (!overlap(one.memory->bytes(), bytes)) return one.ended && one.last_used < done;
    one.ended = true;
    return one.last_used < done;
  });
}

}  // namespace slip::transport
