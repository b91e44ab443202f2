// Proxy: the thread that keeps the network lines of this process moving while their ranks compute. Each line is fed
// through a ring of (place, bytes): who posts counts the head up, and the line counts up what is done, in order. The
// thread sleeps in poll while nothing moves; who waits drives its line itself, and the thread leaves it alone
// meanwhile.
//
// One thread posts to a line, and one waits for it; they may be the same. The bytes must stay until their operation is
// done or the ProxyLine is destroyed. A proxy is not used over fork: of_process() makes a new one in the child.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "transport/net/net.hpp"
#include "transport/socket/wake_up.hpp"

namespace slip {

class Proxy;

class ProxyLine {
 public:
  static constexpr std::uint64_t kDepth = 64;  // operations that may be posted and not done

  ProxyLine(Proxy& proxy, std::unique_ptr<NetSender> sender);
  ProxyLine(Proxy& proxy, std::unique_ptr<NetReceiver> receiver);
  ~ProxyLine();
  ProxyLine(const ProxyLine&) = delete;
  ProxyLine& operator=(const ProxyLine&) = delete;

  // Sends these bytes, or receives at most so many into them. False: the ring is full.
  // kWait: the caller waits for it at once, so the thread need not be woken for it. kPost: it posts another one at
  // once, and both can go together.
  enum class Next { kCompute, kWait, kPost };
  bool post(std::span<std::byte> bytes, Next next = Next::kCompute);
  std::uint64_t posted() const { return head_.load(std::memory_order_relaxed); }  // relaxed: the poster's own count
  // acquire: who sees the count sees the bytes that were received.
  std::uint64_t done() const { return done_.load(std::memory_order_acquire); }
  std::size_t moved(std::uint64_t operation) const;  // bytes, of one that is done and not kDepth operations old

  // Until that many are done. Spins, gives way, then sleeps in poll; throws the line's error.
  void wait(std::uint64_t count, const Patience& patience);

  // For who has several lines to look after: between the two the thread leaves this one alone.
  void attend() { driven_.store(true, std::memory_order_relaxed); }  // relaxed: a hint to the thread; the lock decides
  void leave();
  bool drive();  // moves what goes now; false: nothing, or another thread is at it. Throws the line's error
  // What can make drive() move something, for who attends it and sleeps. False: it need not sleep.
  bool watch(std::vector<pollfd>& all);
  // Who is told when the thread has done an operation of this line, or found its error; null: nobody. When this
  // returns, who was told before is not any more.
  void tell(Sleeper* sleeper);
  const NetPeer& peer() const { return line_->peer(); }

 private:
  friend class Proxy;
  struct Entry {
    std::span<std::byte> bytes;     // written by the poster before the head
    std::size_t moved = 0;          // written under lock_ before done_
    NetRequest* request = nullptr;  // under lock_
  };

  Entry& entry(std::uint64_t operation) { return ring_[operation % kDepth]; }
  bool busy() const { return done() < head_.load(std::memory_order_acquire) && !failed(); }
  // acquire: pairs with the release after error_ was written.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Memory that was registered with the network, so that bytes used again are not registered again.
  struct Registered {
    std::unique_ptr<NetMemory> memory;
    std::uint64_t last_used = 0;  // the operation
  };

  bool try_drive();  // as drive(), but the error is kept for later
  bool drive_and_tell();
  bool move();  // under lock_
  bool start(Entry& one, bool more);
  const NetMemory* registered(std::span<std::byte> bytes);
  void rest(const Patience& patience);
  void throw_error() const;

  Proxy& proxy_;
  std::unique_ptr<NetSender> sender_;
  std::unique_ptr<NetReceiver> receiver_;
  NetLine* line_;                       // one of the two
  std::vector<Registered> registered_;  // under lock_
  Sleeper* sleeper_ = nullptr;          // under lock_
  std::array<Entry, kDepth> ring_;
  std::atomic<std::uint64_t> head_{0};
  std::atomic<bool> driven_{false};   // somebody waits and drives
  std::atomic<bool> resting_{false};  // and sleeps in poll
  WakeUp wake_up_;
  alignas(64) SpinLock lock_;
  std::uint64_t started_ = 0;  // under lock_
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::optional<Error> error_;  // written once, before failed_
};

class Proxy {
 public:
  Proxy();
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  static Proxy& of_process();

 private:
  friend class ProxyLine;
  void add(ProxyLine* line);
  void remove(ProxyLine* line);
  void poke();  // after something was left to the thread
  void live();
  bool turn();
  void sleep();

  WakeUp wake_up_;
  std::atomic<bool> asleep_{false}, stopping_{false};
  std::mutex mutex_;
  std::vector<ProxyLine*> lines_;  // under mutex_
  Thread thread_;
};

}  // namespace slip
