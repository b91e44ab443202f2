// Proxy: the thread that moves the bytes of this process's network connections while the ranks compute. Each connection
// has a ring of operations. The posting thread increments the ring's head; the connection completes the operations in
// order and counts them. While no bytes move, the proxy sleeps in poll. A thread that waits for a connection drives it
// itself; meanwhile the proxy does not touch that connection. The connection's Registrations keep the memory that its
// operations have used registered.
//
// One thread posts to a connection, and one waits for it; they may be the same. The bytes must stay valid until their
// operation is done or the ProxyConnection is destroyed. A forked child does not use its parent's proxy: of_process()
// makes a new one there.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "transport/net/net.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

// Registrations: the memory that one connection has registered with its network. It stays registered, so that later
// operations on the same bytes need not register them again. A registration ends when its memory is freed, because the
// network would otherwise access the old pages for later memory with the same addresses. The caller ensures that one
// thread at a time uses the object and its connection.
class Registrations : base::NoCopy {
 public:
  explicit Registrations(NetConnection& connection) : connection_(connection) {}

  // Returns registered memory that contains the bytes, for the operation with this number. Operations below `done` are
  // done. Null: there are no bytes.
  const NetMemory* find(std::span<std::byte> bytes, std::uint64_t operation, std::uint64_t done);
  // These bytes are about to be freed. A registration that an operation still uses ends after this operation.
  void end(std::span<const std::byte> bytes, std::uint64_t done);

 private:
  struct Registered {
    std::unique_ptr<NetMemory> memory;
    std::uint64_t last_used = 0;  // number of the last operation that used it
    bool ended = false;           // the memory was freed while an operation used it
  };

  NetConnection& connection_;
  std::vector<Registered> all_;
};

class Proxy;

class ProxyConnection : base::NoCopy {
 public:
  static constexpr std::uint64_t kDepth = 64;  // maximum number of operations that are posted and not done

  template <class End>  // NetSender or NetReceiver
  ProxyConnection(Proxy& proxy, std::unique_ptr<End> end)
      : ProxyConnection(proxy, sender_of(end.get()), std::move(end)) {}
  ~ProxyConnection();

  // Posts an operation that sends these bytes, or receives at most bytes.size() bytes into them. False: the ring is
  // full. `next` says what the caller does next. kWait: it waits for the operation, so the proxy need not be woken.
  // kPost: it posts another operation, so that one system call can move the bytes of both.
  enum class Next { kCompute, kWait, kPost };
  bool post(std::span<std::byte> bytes, Next next = Next::kCompute);
  // relaxed: only the posting thread calls this, and only that thread writes the count.
  std::uint64_t posted() const { return head_.load(std::memory_order_relaxed); }
  // acquire: a thread that sees the count sees the bytes that were received.
  std::uint64_t done() const { return done_.load(std::memory_order_acquire); }
  // Bytes that an operation sent or received. The operation must be done and among the last kDepth ones.
  std::size_t moved(std::uint64_t operation) const { return ring_[operation % kDepth].moved; }

  // Waits until `count` operations are done. Spins, yields, then sleeps in poll; throws the connection's error.
  void wait(std::uint64_t count, const Deadline& deadline);

  // For a thread that waits for several connections: between begin_drive() and end_drive() the proxy does not drive
  // this one.
  void begin_drive() { driven_.store(true, std::memory_order_relaxed); }  // relaxed: a hint; lock_ decides
  void end_drive();
  // Moves the bytes that can move without blocking. False: none could, or another thread holds the lock. Throws the
  // connection's error.
  bool drive();
  // For a driving thread that is about to sleep: appends the descriptors to poll. Returns how many nanoseconds the
  // thread may sleep before it calls drive() again, as NetConnection::watch() does. 0: do not sleep.
  std::int64_t watch(std::vector<pollfd>& all);
  // The proxy wakes this subscriber when it has completed an operation of this connection or found its error. Null: no
  // subscriber. After this call returns, the proxy does not wake the previous subscriber any more.
  void set_subscriber(base::Subscriber* subscriber);
  const NetPeer& peer() const { return connection_->peer(); }
  void throw_if_failed() const {
    if (failed()) throw Error(*error_);
  }

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

  ProxyConnection(Proxy& proxy, NetSender* sender, std::unique_ptr<NetConnection> connection);
  static NetSender* sender_of(NetSender* sender) { return sender; }
  static NetSender* sender_of(NetReceiver*) { return nullptr; }
  bool try_drive();  // as drive(), but stores the error instead of throwing it
  bool drive_and_notify();
  void check_network();  // see NetConnection::check()
  bool move() SLIP_REQUIRES(lock_);
  bool start(Entry& one, bool more) SLIP_REQUIRES(lock_);
  static void on_memory_end(const void* data, std::size_t bytes) noexcept;  // see base/memory_end.hpp
  void sleep(std::uint64_t count, const Deadline& deadline);

  Proxy& proxy_;
  // Declared before the connection, so that it is destroyed afterwards: until the connection has ended, operations that
  // are under way use the registrations.
  Registrations registrations_ SLIP_GUARDED_BY(lock_);
  const std::unique_ptr<NetConnection> connection_;  // a NetSender or a NetReceiver
  NetSender* const sender_;                          // null: this connection receives
  base::Subscriber* subscriber_ SLIP_GUARDED_BY(lock_) = nullptr;
  std::array<Entry, kDepth> ring_;
  std::atomic<std::uint64_t> head_{0};
  std::atomic<bool> driven_{false};  // a waiting thread drives this connection: a hint for the proxy
  base::SleepFlag sleeping_;         // the driving thread sleeps in poll
  base::WakeUp wake_up_;
  alignas(64) base::SpinLock lock_;
  std::uint64_t started_ SLIP_GUARDED_BY(lock_) = 0;  // number of operations that were passed to connection_
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::optional<Error> error_;  // written once, before failed_
};

// Work that a network must do although no operation waits for it. For example, a library must send the bytes that are
// left in its buffers.
class ProxyChore {
 public:
  // Called by the proxy's thread. Does what is possible without blocking, and appends the descriptors whose readiness
  // must wake the proxy. Returns the time of the next call at the latest, in now_ns(); 0: there is nothing to do.
  virtual std::int64_t tend(std::vector<pollfd>& all) noexcept = 0;

 protected:
  ~ProxyChore() = default;
};

class Proxy : base::NoCopy {
 public:
  Proxy();
  ~Proxy();
  static Proxy& of_process();
  // The chore is called until it is removed. A chore that has new work wakes the proxy, see wake().
  void add(ProxyChore* chore);
  void remove(ProxyChore* chore);
  // Call it after posting an operation that the proxy must drive, or when a chore has work. The caller needs a full
  // fence before it.
  void wake();

 private:
  friend class ProxyConnection;
  void add(ProxyConnection* connection);
  void remove(ProxyConnection* connection);
  void run();
  bool drive_all();
  std::int64_t tend_all(std::vector<pollfd>& watched);
  void check_all();
  void sleep();

  const pid_t process_;  // in a forked child the thread does not exist, and may have held mutex_
  base::WakeUp wake_up_;
  base::SleepFlag asleep_;
  std::atomic<bool> stopping_{false};
  base::Mutex mutex_;
  std::vector<ProxyConnection*> connections_ SLIP_GUARDED_BY(mutex_);
  std::vector<ProxyChore*> chores_ SLIP_GUARDED_BY(mutex_);
  base::Thread thread_;
};

}  // namespace slip::transport
