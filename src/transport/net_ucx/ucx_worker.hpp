// The objects of UCX that connections share. UcxLibrary: the functions of UCX. UcxContext: one per process (and network
// namespace). UcxWorker: one for each rank of a communicator, shared by the connections of that rank. A worker costs
// milliseconds, about ten descriptors and megabytes, so a connection cannot have its own. UcxPort: one connection's
// share of a worker.
//
// A thread drives a worker by calling ucp_worker_progress. When an operation has completed, UCX calls a callback in the
// thread that drives the worker. The callback appends the operation to a list of its port. The thread that uses the
// connection takes the operation from there. The worker's lock guards a worker, its endpoints and its ports.
#pragma once

#include <sys/types.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sync.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/net.hpp"
#include "transport/net/proxy.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

// The functions of UCX that are used, each with the name of its member in UcxLibrary.
#define SLIP_UCX_FUNCTIONS(EACH)                           \
  EACH(get_version, ucp_get_version)                       \
  EACH(status_string, ucs_status_string)                   \
  EACH(config_read, ucp_config_read)                       \
  EACH(config_modify, ucp_config_modify)                   \
  EACH(config_release, ucp_config_release)                 \
  EACH(init_version, ucp_init_version)                     \
  EACH(cleanup, ucp_cleanup)                               \
  EACH(context_query, ucp_context_query)                   \
  EACH(context_print_info, ucp_context_print_info)         \
  EACH(mem_map, ucp_mem_map)                               \
  EACH(mem_unmap, ucp_mem_unmap)                           \
  EACH(worker_create, ucp_worker_create)                   \
  EACH(worker_destroy, ucp_worker_destroy)                 \
  EACH(worker_get_address, ucp_worker_get_address)         \
  EACH(worker_release_address, ucp_worker_release_address) \
  EACH(worker_get_efd, ucp_worker_get_efd)                 \
  EACH(worker_arm, ucp_worker_arm)                         \
  EACH(worker_progress, ucp_worker_progress)               \
  EACH(ep_create, ucp_ep_create)                           \
  EACH(ep_close, ucp_ep_close_nbx)                         \
  EACH(worker_flush, ucp_worker_flush_nbx)                 \
  EACH(tag_send, ucp_tag_send_nbx)                         \
  EACH(tag_recv, ucp_tag_recv_nbx)                         \
  EACH(request_free, ucp_request_free)                     \
  EACH(request_check_status, ucp_request_check_status)     \
  EACH(request_cancel, ucp_request_cancel)

// UCX's library, loaded with dlopen when it is first needed: libucp.so.0, or the file that SLIP_UCX_LIBRARY names. The
// headers of UCX are needed to build Slipstream, the library only to use UCX.
//
// UCX would install signal handlers when it is loaded, and print warnings. If this process loads it here first, the
// signals keep their handlers, and UCX prints fatal errors only. The user's UCX_HANDLE_ERRORS, UCX_ERROR_SIGNALS and
// UCX_LOG_LEVEL have priority.
struct UcxLibrary {
  std::string text;  // "UCX 1.13.1 (/usr/lib/libucp.so.0)"

#define SLIP_UCX_MEMBER(MEMBER, FUNCTION) decltype(&::FUNCTION) MEMBER = nullptr;
  SLIP_UCX_FUNCTIONS(SLIP_UCX_MEMBER)
#undef SLIP_UCX_MEMBER
};

struct UcxSearch {
  const UcxLibrary* loaded = nullptr;  // lives as long as the process; null: see `problem`
  std::string problem;                 // names the library, and the symbol if one is missing
};

UcxSearch find_ucx();  // loads the library at the first call

class UcxContext : base::NoCopy {
 public:
  // Throws if UCX cannot be loaded, or has no transport that the variables of UCX allow.
  static const UcxContext& of_process();

  const UcxLibrary& ucx() const { return ucx_; }
  ucp_context_h handle() const { return handle_; }
  const std::vector<std::string>& transports() const { return transports_; }  // "tcp/eth0"
  bool reaches_cuda() const { return reaches_cuda_; }                         // UCX was built with CUDA
  bool is_plain_tcp() const { return plain_tcp_; }                            // there is no other network
  std::string status_text(ucs_status_t status) const { return ucx_.status_string(status); }

 private:
  explicit UcxContext(const UcxLibrary& ucx);
  void init(bool plain_tcp);
  void set_option(ucp_config_t* config, std::string_view name, const char* value) const;
  const UcxLibrary& ucx_;
  ucp_context_h handle_ = nullptr;
  std::vector<std::string> transports_;
  bool reaches_cuda_ = false;
  bool plain_tcp_ = false;
};

// The variables of the environment that limit the transports of UCX, for errors: "UCX_TLS=tcp". "": none is set.
std::string ucx_limits_text();

class UcxPort;

// An endpoint of UCX. The worker owns it, because UCX may report its loss after the connection that used it has ended.
struct UcxEndpoint {
  ucp_ep_h handle = nullptr;  // null: closed
  ucs_status_t status = UCS_OK;
  // No rendezvous message has completed yet. During the first one, both ends exchange identifiers. If the endpoint is
  // closed while the peer's answer waits to be sent, UCX 1.13 ends the peer's process.
  bool is_new = true;
  // False: the transport has no error handling. It does not report the loss of a peer, and an endpoint with pending
  // operations cannot be closed.
  bool reports_loss = true;
};
inline constexpr std::size_t kUcxRendezvousBytes = std::size_t{1} << 20;  // UCX's own limit is lower

// An operation that was passed to UCX. It must not move while it is pending.
struct UcxOperation {
  UcxPort* port = nullptr;
  void* request = nullptr;  // UCX's request; null: the operation is not pending
  std::size_t place = 0;    // index in the port's list of pending operations
  ucs_status_t status = UCS_OK;
  std::size_t bytes = 0;    // for a receive: the length of the message
  std::uint32_t index = 0;  // in the owner's operations_
  bool complete = false;
};

// Names the lock of a worker in annotations: clang cannot see that a port and its connection refer to the same worker.
struct SLIP_CAPABILITY("spin lock of the worker") UcxLock {};
extern UcxLock ucx_lock;  // has no definition

class UcxWorker final : public ProxyChore, base::NoCopy {
 public:
  // The worker of this rank of the communicator that has this key. Throws if UCX cannot make one, and in a forked child
  // whose parent had workers: UCX's thread does not exist there.
  static std::shared_ptr<UcxWorker> of_rank(const Secret& key, int rank);
  UcxWorker();
  ~UcxWorker();

  const UcxContext& context() const { return context_; }
  const UcxLibrary& ucx() const { return context_.ucx(); }
  std::span<const std::byte> address() const { return address_; }

  base::SpinLock& lock() SLIP_RETURN_CAPABILITY(ucx_lock) { return lock_; }
  std::uint32_t new_number() SLIP_REQUIRES(ucx_lock) { return ++last_number_; }
  ucp_worker_h handle() const SLIP_REQUIRES(ucx_lock) { return handle_; }  // null: the worker has ended
  bool progress() SLIP_REQUIRES(ucx_lock);                                 // false: nothing moved
  // Null, with the reason in `status`: UCX has no transport that reaches the worker with this address.
  UcxEndpoint* connect(std::span<const std::byte> address, ucs_status_t& status) SLIP_REQUIRES(ucx_lock);
  // Stops the messages that are under way on the endpoint, without waiting for the peer. UCX completes them while a
  // thread drives the worker. Does nothing if the endpoint cannot be closed safely, see UcxEndpoint.
  void close(UcxEndpoint& endpoint) SLIP_REQUIRES(ucx_lock);
  // Ends UCX's worker, so that UCX accesses no memory any more. All connections that share this worker fail afterwards.
  void end() SLIP_REQUIRES(ucx_lock);
  bool has_ended();
  bool is_inherited() const;  // this process is a forked child, and the worker belongs to its parent
  // Call it when an operation begins. UCX may keep bytes in its buffers when the operation is complete, for example
  // because a socket is full, and sends them only while a thread drives the worker. If no thread has driven it for a
  // while, the proxy does, until UCX has flushed everything.
  void note_operation() SLIP_REQUIRES(ucx_lock);

  std::int64_t tend(std::vector<pollfd>& all) noexcept override;

 private:
  friend class UcxPort;
  // After this, no thread drives the worker any more. If UCX's worker was not destroyed, its memory and sockets are
  // leaked.
  void mark_ended() SLIP_REQUIRES(ucx_lock);
  void flush() SLIP_REQUIRES(ucx_lock);
  void drive_until(const std::function<bool()>& reached, std::int64_t limit_ns) SLIP_REQUIRES(ucx_lock);
  bool is_closing() SLIP_REQUIRES(ucx_lock);
  static void on_endpoint_error(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  static void on_flushed(void* request, ucs_status_t status, void* worker);
  bool arm() SLIP_REQUIRES(ucx_lock);  // false: there are events, so that no thread may sleep yet
  void arm_for_sleepers() SLIP_REQUIRES(ucx_lock);

  base::SpinLock lock_;
  const UcxContext& context_;
  const pid_t process_;  // in a forked child, UCX's objects of the parent must not be touched
  ucp_worker_h handle_ SLIP_GUARDED_BY(ucx_lock) = nullptr;
  int descriptor_ = -1;
  std::vector<std::byte> address_;
  std::uint32_t last_number_ SLIP_GUARDED_BY(ucx_lock) = 0;
  std::list<UcxEndpoint> endpoints_ SLIP_GUARDED_BY(ucx_lock);
  std::vector<void*> closing_ SLIP_GUARDED_BY(ucx_lock);   // UCX's requests of endpoints that are being closed
  std::vector<UcxPort*> ports_ SLIP_GUARDED_BY(ucx_lock);  // all connections that share this worker
  struct Flush {
    std::uint64_t operations = 0;  // operations begun so far
    std::uint64_t covered = 0;     // the value of `operations` when the last flush began
    bool under_way = false;
  } flush_ SLIP_GUARDED_BY(ucx_lock);
  // The next two are written under the lock and read without it, as hints.
  std::atomic<bool> unflushed_{false};
  std::atomic<std::uint64_t> driven_ticks_{0};                      // when a thread last drove the worker
  std::vector<const UcxPort*> sleepers_ SLIP_GUARDED_BY(ucx_lock);  // ports whose threads may sleep in poll
};

// Tries to lock the worker. If that fails, another thread holds the lock, and usually drives the worker.
class UcxTryLock : base::NoCopy {
 public:
  // Not analysed: whether it holds the lock is known at run time only.
  explicit UcxTryLock(UcxWorker& worker) SLIP_NO_THREAD_SAFETY_ANALYSIS : worker_(worker),
                                                                          held_(worker.lock().try_lock()) {}
  ~UcxTryLock() SLIP_NO_THREAD_SAFETY_ANALYSIS {
    if (held_) worker_.lock().unlock();
  }
  explicit operator bool() const { return held_; }

 private:
  UcxWorker& worker_;
  const bool held_;
};

class UcxPort : base::NoCopy {
 public:
  explicit UcxPort(std::shared_ptr<UcxWorker> worker);
  // Cancels the pending operations. If UCX cannot cancel one of them, it ends the worker.
  ~UcxPort();

  UcxWorker& worker() const { return *worker_; }
  // Of a sender; null: the address of the receiver's worker has not arrived yet.
  UcxEndpoint* endpoint() const { return endpoint_; }
  void set_endpoint(UcxEndpoint* endpoint) { endpoint_ = endpoint; }
  // Appends the descriptors to poll: one becomes ready when progress() can take a completed operation. Returns how many
  // nanoseconds a thread may sleep, see NetConnection::watch(). Throws nothing: the proxy's thread calls it.
  std::int64_t watch(std::vector<pollfd>& all) const;

  // Call start() before the function of UCX, and pass its result to started(). True: the operation is complete. False:
  // it is pending, or its callback has already added it to completed().
  void start(UcxOperation& operation) SLIP_REQUIRES(ucx_lock);
  bool started(UcxOperation& operation, ucs_status_ptr_t result) SLIP_REQUIRES(ucx_lock);
  // Drives the worker. False: nothing moved, and no operation of this port has completed.
  bool progress() SLIP_REQUIRES(ucx_lock);
  // Operations whose callback was called. The owner handles them and clears the list.
  std::vector<UcxOperation*>& completed() SLIP_REQUIRES(ucx_lock) { return completed_; }
  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* operation);

 private:
  friend class UcxWorker;
  void complete(UcxOperation& operation, ucs_status_t status) SLIP_REQUIRES(ucx_lock);
  void cancel_all() SLIP_REQUIRES(ucx_lock);
  void stop_sleeping() const SLIP_REQUIRES(ucx_lock);

  const std::shared_ptr<UcxWorker> worker_;
  UcxEndpoint* endpoint_ = nullptr;
  std::vector<UcxOperation*> pending_ SLIP_GUARDED_BY(ucx_lock);
  std::vector<UcxOperation*> completed_ SLIP_GUARDED_BY(ucx_lock);
  // This port is in the worker's list of sleepers.
  mutable bool sleeping_ SLIP_GUARDED_BY(ucx_lock) = false;
  mutable std::optional<base::WakeUp> wake_up_;  // created when a thread first sleeps
};

}  // namespace slip::transport
