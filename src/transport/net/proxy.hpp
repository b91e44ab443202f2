// Proxy: the thread that moves the bytes of this process's network connections while the ranks compute. Each connection
// has a ring of operations: the posting thread increments the head, and the connection counts the operations that are
// done, in order. The proxy sleeps in poll while nothing moves. A thread that waits for a connection drives it itself,
// and the proxy leaves that connection alone meanwhile.
//
// One thread posts to a connection, and one waits for it; they may be the same. The bytes must stay valid until their
// operation is done or the ProxyConnection is destroyed. A proxy is not used over fork: of_process() makes a new one in
// the child.
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
#include "transport/socket/abort_flag.hpp"

namespace slip {

class Proxy;

class ProxyConnection {
 public:
  static constexpr std::uint64_t kDepth = 64;  // operations that may be posted and not done

  ProxyConnection(Proxy& proxy, std::unique_ptr<NetSender> sender);
  ProxyConnection(Proxy& proxy, std::unique_ptr<NetReceiver> receiver);
  ~ProxyConnection();
  ProxyConnection(const ProxyConnection&) = delete;
  ProxyConnection& operator=(const ProxyConnection&) = delete;

  // Sends these bytes, or receives at most so many into them. False: the ring is full.
  // kWait: the caller waits for it at once, so the proxy need not be woken. kPost: the caller posts another one at
  // once, and one system call may move both.
  enum class Next { kCompute, kWait, kPost };
  bool post(std::span<std::byte> bytes, Next next = Next::kCompute);
  std::uint64_t posted() const {
    return head_.load(std::memory_order_relaxed);
  }  // relaxed: the posting thread's own count
  // acquire: a thread that sees the count sees the bytes that were received.
  std::uint64_t done() const { return done_.load(std::memory_order_acquire); }
  std::size_t moved(std::uint64_t operation) const;  // bytes of an operation that is done and not kDepth operations old

  // Waits until that many are done. Spins, yields, then sleeps in poll; throws the connection's error.
  void wait(std::uint64_t count, const Deadline& deadline);

  // For a thread that waits for several connections: between the two the proxy leaves this one alone.
  void begin_drive() { driven_.store(true, std::memory_order_relaxed); }  // relaxed: a hint; lock_ decides
  void end_drive();
  bool drive();  // moves what can move now; false: nothing, or another thread does. Throws the connection's error
  // Adds the descriptors that can make drive() move something, for a driving thread that sleeps. False: do not sleep.
  bool watch(std::vector<pollfd>& all);
  // The proxy wakes this subscriber when it has finished an operation of this connection or found its error; null:
  // none. When this returns, the subscriber before it is not woken any more.
  void set_subscriber(Subscriber* subscriber);
  const NetPeer& peer() const { return connection_->peer(); }

 private:
  friend class Proxy;
  struct Entry {
    std::span<std::byte> bytes;     // written by the posting thread before the head
    std::size_t moved = 0;          // written under lock_ before done_
    NetRequest* request = nullptr;  // under lock_
  };

  Entry& entry(std::uint64_t operation) { return ring_[operation % kDepth]; }
  bool busy() const { return done() < head_.load(std::memory_order_acquire) && !failed(); }
  // acquire: pairs with the release after error_ was written.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Memory that is registered with the network, kept so that bytes that are used again need not be registered again.
  struct Registered {
    std::unique_ptr<NetMemory> memory;
    std::uint64_t last_used = 0;  // the operation
  };

  bool try_drive();  // as drive(), but the error is kept for later
  bool drive_and_notify();
  bool move();  // REQUIRES: lock_
  bool start(Entry& one, bool more);
  const NetMemory* registered(std::span<std::byte> bytes);
  void sleep(const Deadline& deadline);
  void throw_error() const;

  Proxy& proxy_;
  const std::unique_ptr<NetConnection> connection_;  // a NetSender or a NetReceiver
  NetSender* const sender_;                          // null: it receives
  std::vector<Registered> registered_;               // under lock_
  Subscriber* subscriber_ = nullptr;                 // under lock_
  std::array<Entry, kDepth> ring_;
  std::atomic<std::uint64_t> head_{0};
  std::atomic<bool> driven_{false};    // a waiting thread drives it
  std::atomic<bool> sleeping_{false};  // and sleeps in poll
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
  friend class ProxyConnection;
  void add(ProxyConnection* connection);
  void remove(ProxyConnection* connection);
  void wake();  // after an operation was left to the proxy
  void run();
  bool drive_all();
  void sleep();

  WakeUp wake_up_;
  std::atomic<bool> asleep_{false}, stopping_{false};
  std::mutex mutex_;
  std::vector<ProxyConnection*> connections_;  // under mutex_
  Thread thread_;
};

}  // namespace slip
