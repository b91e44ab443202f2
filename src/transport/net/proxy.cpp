#include "transport/net/proxy.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"

namespace slip::transport {
namespace {
constexpr double kProxySpinUs = 20;  // spin limit of the proxy after something moved
constexpr std::int64_t kLookAgainNs = 1'000'000'000;
}  // namespace

ProxyConnection::ProxyConnection(Proxy& proxy, std::unique_ptr<NetConnection> connection)
    : proxy_(proxy), connection_(std::move(connection)) {
  proxy_.add(this);
}

ProxyConnection::~ProxyConnection() { proxy_.remove(this); }

bool ProxyConnection::post(std::span<std::byte> bytes, Next next) {
  if (failed()) throw Error(*error_);
  const std::uint64_t head = posted();
  if (head - done() == kDepth) return false;
  entry(head).bytes = bytes;
  head_.store(head + 1, std::memory_order_release);  // release: a thread that sees the new head sees the entry
  if (next == Next::kPost) return true;
  static_cast<void>(try_drive());
  base::full_fence();  // orders the head before the proxy's asleep_: the proxy sets asleep_, then reads the head
  if (busy() && !driven_.load(std::memory_order_relaxed)) proxy_.wake();  // relaxed: a hint
  return true;
}

void ProxyConnection::end_drive() {
  driven_.store(false, std::memory_order_relaxed);
  base::full_fence();  // orders driven_ before the proxy's asleep_: the proxy sets asleep_, then reads driven_
  if (busy()) proxy_.wake();
}

bool ProxyConnection::try_drive() {
  if (failed() || !lock_.try_lock()) return false;
  bool moved_some = false;
  try {
    moved_some = move();
  } catch (const Error& error) {
    error_.emplace(error);
    failed_.store(true, std::memory_order_release);  // release: a thread that sees failed_ sees error_
    moved_some = true;
  }
  lock_.unlock();
  return moved_some;
}

bool ProxyConnection::drive_and_notify() {
  const std::uint64_t before = done();
  if (!try_drive()) return false;
  if (done() == before && !failed()) return true;
  const base::LockGuard lock(lock_);
  if (subscriber_) subscriber_->wake_up();
  return true;
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

bool ProxyConnection::watch(std::vector<pollfd>& all) {
  if (failed() || !lock_.try_lock()) return false;
  const bool started = started_ == head_.load(std::memory_order_acquire);  // acquire: as in move()
  connection_->watch(all);
  lock_.unlock();
  return started;
}

bool ProxyConnection::move() {
  bool moved_some = false;
  const std::uint64_t head = head_.load(std::memory_order_acquire);  // acquire: sees the entries before this head
  for (; started_ < head; ++started_) {
    Entry& one = entry(started_);
    one.request = connection_->start(one.bytes, started_ + 1 < head);
    if (!one.request) break;
  }
  std::uint64_t done = done_.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  if (done < started_ && !entry(done).request->done) moved_some = connection_->progress();
  const std::uint64_t before = done;
  while (done < started_ && entry(done).request->done) ++done;
  // release: a thread that sees the count sees the bytes and NetRequest::moved.
  if (done != before) done_.store(done, std::memory_order_release);
  return moved_some || done != before;
}

Proxy::Proxy() {
  thread_.start("slip proxy", [this] { run(); });
}

Proxy::~Proxy() {
  stopping_.store(true, std::memory_order_release);  // release: pairs with the acquire in run()
  wake_up_.signal();
  thread_.join();
}

Proxy& Proxy::of_process() {
  static base::ForkMutex mutex;
  static Proxy* proxy = nullptr;  // never deleted: static objects may hold connections until the process ends
  static pid_t owner = 0;
  const base::LockGuard lock(mutex);
  if (owner != ::getpid()) {
    proxy = new Proxy;
    owner = ::getpid();
  }
  return *proxy;
}

void Proxy::add(ProxyConnection* one) {
  const base::LockGuard lock(mutex_);
  connections_.push_back(one);
}

void Proxy::remove(ProxyConnection* one) {
  const base::LockGuard lock(mutex_);
  connections_.erase(std::find(connections_.begin(), connections_.end(), one));
}

void Proxy::wake() {
  // relaxed, both: the caller's fence orders its operation before this load. The proxy's fence in sleep() orders its
  // store before it reads the connections.
  if (asleep_.load(std::memory_order_relaxed) && asleep_.exchange(false, std::memory_order_relaxed)) wake_up_.signal();
}

void Proxy::run() {
  base::set_time_slice(base::TimeSlice::kShort);
  const auto spin = static_cast<std::uint64_t>(kProxySpinUs * base::ticks_per_us());
  std::uint64_t since = base::ticks() - spin;
  while (!stopping_.load(std::memory_order_acquire)) {  // acquire: pairs with the destructor
    if (drive_all()) since = base::ticks();
    else if (base::ticks() - since >= spin) sleep();
  }
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

// Skips a connection that a waiting thread drives, or whose lock is held: that thread wakes the proxy when it stops.
void Proxy::sleep() {
  std::vector<pollfd> watched{{wake_up_.descriptor(), POLLIN, 0}};
  asleep_.store(true, std::memory_order_relaxed);
  base::full_fence();  // orders asleep_ before the reads of the connections; see wake()
  bool unstarted = false;
  {
    const base::LockGuard lock(mutex_);
    for (ProxyConnection* one : connections_) {
      if (one->driven_.load(std::memory_order_relaxed) || !one->busy() || !one->lock_.try_lock()) continue;
      unstarted = unstarted || one->started_ < one->head_.load(std::memory_order_acquire);
      one->connection_->watch(watched);
      one->lock_.unlock();
    }
  }
  if (!unstarted) wait_for_any(watched, kLookAgainNs);
  asleep_.store(false, std::memory_order_relaxed);
  wake_up_.drain();
}

}  // namespace slip::transport
