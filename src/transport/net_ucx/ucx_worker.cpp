#if SLIP_HAS_UCX
#include "transport/net_ucx/ucx_worker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/thread.hpp"
#include "base/wait.hpp"
#include "transport/net/net_choice.hpp"

namespace slip::transport {
namespace {

// Options of UCX (environment variables without the prefix UCX_) that Slipstream sets if UCX has no network but TCP and
// the environment does not set them.
//   RNDV_THRESH    UCX's own choice is below 32 KiB, and a rendezvous costs about 20 us over TCP: ucx_perftest's 32 KiB
//                  take 32 us with it on loopback, and 11 us without.
//   ZCOPY_THRESH   If the peer resets the connection while UCX 1.13 sends without a copy, an assertion of UCX ends this
//                  process. So UCX copies, into segments that are large enough to be as fast.
struct UcxSetting {
  const char *name, *value;
};
constexpr UcxSetting kPlainTcp[] = {
    {"RNDV_THRESH", "512K"}, {"ZCOPY_THRESH", "inf"}, {"TCP_TX_SEG_SIZE", "256K"}, {"TCP_RX_SEG_SIZE", "256K"}};

constexpr int kMaxArmAttempts = 16;  // if the worker cannot be armed after so many attempts, sleeping threads are woken

// The maximum sleep of a thread that no other thread can wake, because the process has no descriptors left.
constexpr std::int64_t kPollNs = 500'000;
// If no thread has driven a worker with unflushed bytes for this time, the proxy drives it.
constexpr double kUnattendedUs = 2000;
constexpr std::int64_t kUnattendedNs = 2'000'000;
constexpr std::int64_t kFlushAgainNs = 50'000'000;  // the maximum time between two calls of tend() during a flush
// The maximum time that a rank waits when it leaves, until UCX has passed the bytes of completed sends to the kernel or
// the network. The wait is long only if the receiver does not drive its worker meanwhile and the buffers between the
// two ranks are full. The limit is for a peer that is stopped: aborts must end within about a second.
constexpr std::int64_t kMaxFlushNs = 1'000'000'000;
// The maximum time until UCX has ended cancelled operations and closed endpoints. A peer that is stopped does not
// answer.
constexpr std::int64_t kMaxCloseNs = 20'000'000;

ino_t network_namespace() {
  struct stat about {};
  return ::stat("/proc/thread-self/ns/net", &about) == 0 ? about.st_ino : 0;
}

// The transports and devices that UCX may use in this context, from the text that UCX prints for people: no function
// returns them. Its lines are "#   resource 1  :  md 0  dev 1  flags -- tcp/eth0".
std::vector<std::string> list_transports(const UcxLibrary& ucx, ucp_context_h context) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const file = ::open_memstream(&text, &bytes);
  if (!file) return {};
  ucx.context_print_info(context, file);
  std::fclose(file);
  std::istringstream lines(std::string(text, bytes));
  std::free(text);
  std::vector<std::string> result;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t last = line.find_last_of(' ');
    if (line.find(" resource ") != std::string::npos && last != std::string::npos &&
        line.find('/', last) != std::string::npos)
      result.push_back(line.substr(last + 1));
  }
  return result;
}

// The UcxContexts and UcxWorkers of this process. A forked child begins with an empty table.
struct ProcessTable {
  pid_t process = 0;
  std::map<ino_t, const UcxContext*> contexts;  // by network namespace; never deleted
  std::map<std::pair<Secret, int>, std::weak_ptr<UcxWorker>> workers;
  int live = 0;            // workers that exist
  bool inherited = false;  // the parent had workers when it forked
};

// Not static variables of with_table(): each instance of that template would have a table of its own.
struct CurrentTable {
  base::ForkMutex mutex;
  ProcessTable* table SLIP_GUARDED_BY(mutex) = nullptr;  // never deleted: static objects may hold workers until the end
};

template <class Use>
auto with_table(const Use& use) {
  CurrentTable& current = base::process_wide<CurrentTable>();
  const base::LockGuard lock(current.mutex);
  const ProcessTable* const last = current.table;
  if (!last || last->process != ::getpid()) {
    const bool inherited = last && (last->live > 0 || last->inherited);
    current.table = new ProcessTable{.process = ::getpid(), .contexts = {}, .workers = {}, .inherited = inherited};
  }
  return use(*current.table);
}

}  // namespace

std::string ucx_limits_text() {
  std::vector<std::string> set;
  for (const char* name : {"UCX_TLS", "UCX_NET_DEVICES"}) {
    if (const std::string value = base::env_text(name); !value.empty())
      set.push_back(fmt::format("{}={}", name, value));
  }
  return fmt::format("{}", fmt::join(set, ", "));
}

const UcxContext& UcxContext::of_process() {
  const ino_t space = network_namespace();
  // Returns the context in the table. If there is none, `made` becomes it.
  const auto find = [&](const UcxContext* made) {
    return with_table([&](ProcessTable& table) {
      const UcxContext*& known = table.contexts[space];
      if (!known) known = made;
      return known;
    });
  };
  if (const UcxContext* const earlier = find(nullptr)) return *earlier;
  const UcxSearch search = find_ucx();
  if (!search.loaded)
    base::fail(ErrorCode::kUnsupported, {},
               "UCX cannot be used: {}. Install it (Debian: libucx0), name its libucp.so.0 with SLIP_UCX_LIBRARY=FILE, "
               "or set SLIP_NET=tcp",
               search.problem);
  return *find(new UcxContext(*search.loaded));  // without the lock, because it takes milliseconds
}

UcxContext::UcxContext(const UcxLibrary& ucx) : ucx_(ucx) {
  init(false);
  plain_tcp_ = fast_networks(transports_).empty();
  if (!plain_tcp_) return;
  ucx_.cleanup(handle_);
  init(true);
}

// Sets the option under both of its names: UCX 1.13 accepts an option of a transport only without the transport's name.
void UcxContext::set_option(ucp_config_t* config, std::string_view name, const char* value) const {
  static_cast<void>(ucx_.config_modify(config, std::string(name).c_str(), value));
  if (name.starts_with("TCP_"))
    static_cast<void>(ucx_.config_modify(config, std::string(name.substr(4)).c_str(), value));
}

void UcxContext::init(bool plain_tcp) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config);
  if (status == UCS_OK) {
    // Ranks of one host use Slipstream's own shared memory. UCX would also use its shared memory between containers of
    // one host, and that transport does not report a lost peer.
    if (base::env_text("UCX_TLS").empty()) static_cast<void>(ucx_.config_modify(config, "TLS", "^sm"));
    for (const auto& [name, value] : kPlainTcp) {
      if (plain_tcp && base::env_text((std::string("UCX_") + name).c_str()).empty()) set_option(config, name, value);
    }
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle_);
    ucx_.config_release(config);
  }
  if (status != UCS_OK) {
    const std::string limits = ucx_limits_text();
    base::fail(ErrorCode::kUnsupported, {},
               "{} cannot be initialised{}: {}. `ucx_info -d` lists the transports and devices that it has; change the "
               "variables of UCX, or set SLIP_NET=tcp",
               ucx_.text, limits.empty() ? "" : " with " + limits, status_text(status));
  }
  transports_ = list_transports(ucx_, handle_);
  ucp_context_attr_t about{};
  about.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucx_.context_query(handle_, &about) == UCS_OK)
    reaches_cuda_ = (about.memory_types >> UCS_MEMORY_TYPE_CUDA & 1U) != 0;
}

std::shared_ptr<UcxWorker> UcxWorker::of_rank(const Secret& key, int rank) {
  // Returns the worker in the table. If there is none that can be used, `made` becomes it.
  const auto find = [&](std::shared_ptr<UcxWorker> made) {
    // Destroyed after the table is unlocked, because the destructor of a worker locks the table.
    std::shared_ptr<UcxWorker> ended;
    return with_table([&](ProcessTable& table) {
      if (table.inherited)
        base::fail(ErrorCode::kUnsupported, {},
                   "rank {} cannot use UCX: process {} was forked from one that has connections over UCX, whose thread "
                   "does not exist here. Start the process with exec (multiprocessing: spawn), fork before the first "
                   "communicator, or set SLIP_NET=tcp",
                   rank, ::getpid());
      std::erase_if(table.workers, [](const auto& one) { return one.second.expired(); });
      std::weak_ptr<UcxWorker>& place = table.workers[{key, rank}];
      std::shared_ptr<UcxWorker> known = place.lock();
      if (known && known->has_ended()) ended = std::move(known);
      if (known || !made) return known;
      place = made;
      return made;
    });
  };
  if (std::shared_ptr<UcxWorker> earlier = find(nullptr)) return earlier;
  return find(std::make_shared<UcxWorker>());  // without the table's lock, because it takes milliseconds
}

UcxWorker::UcxWorker() : context_(UcxContext::of_process()), process_(::getpid()) {
  with_table([](ProcessTable& table) { return ++table.live; });
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // lock() serialises the threads
  ucs_status_t status = ucx().worker_create(context_.handle(), &params, &handle_);
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (status == UCS_OK) status = ucx().worker_get_efd(handle_, &descriptor_);
  if (status == UCS_OK) status = ucx().worker_get_address(handle_, &address, &bytes);
  if (status == UCS_OK) {
    const auto* const begin = reinterpret_cast<const std::byte*>(address);
    address_.assign(begin, begin + bytes);
    ucx().worker_release_address(handle_, address);
    Proxy::of_process().add(this);
    return;
  }
  if (handle_) end();
  with_table([](ProcessTable& table) { return --table.live; });
  base::fail(ErrorCode::kIo, {}, "{} cannot make a worker: {}. Set SLIP_NET=tcp to use TCP instead", ucx().text,
             context_.status_text(status));
}

UcxWorker::~UcxWorker() {
  if (is_inherited()) return;
  Proxy::of_process().remove(this);
  if (handle_) {
    flush();  // before the endpoints are closed: otherwise the bytes that UCX has not sent yet would be lost
    drive_until([this]() SLIP_REQUIRES(ucx_lock) { return !flush_.under_way; }, kMaxFlushNs);
    end();
  }
  with_table([](ProcessTable& table) { return --table.live; });
}

void UcxWorker::drive_until(const std::function<bool()>& reached, std::int64_t limit_ns) {
  const std::int64_t end_ns = base::now_ns() + limit_ns;
  for (base::Backoff backoff(base::kYieldWait); !reached() && base::now_ns() < end_ns;) {
    if (ucx().worker_progress(handle_) == 0) backoff.pause();
  }
  arm_for_sleepers();
}

UcxEndpoint* UcxWorker::connect(std::span<const std::byte> address, ucs_status_t& status) {
  UcxEndpoint& one = endpoints_.emplace_back();
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxWorker::on_endpoint_error, &one};
  status = ucx().ep_create(handle_, &params, &one.handle);
  if (status == UCS_ERR_UNREACHABLE || status == UCS_ERR_UNSUPPORTED) {
    // The transport has no error handling for lost peers. The end of the TCP socket reports the loss instead.
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    one.reports_loss = false;
    status = ucx().ep_create(handle_, &params, &one.handle);
  }
  if (status == UCS_OK) return &one;
  endpoints_.pop_back();
  return nullptr;
}

// UCX calls it in the thread that drives the worker and holds its lock.
void UcxWorker::on_endpoint_error(void* endpoint, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxEndpoint*>(endpoint)->status = status;
}

void UcxWorker::close(UcxEndpoint& endpoint) {
  if (!endpoint.handle || endpoint.is_new || !endpoint.reports_loss) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t result = ucx().ep_close(endpoint.handle, &params);
  if (UCS_PTR_IS_PTR(result)) closing_.push_back(result);
  endpoint.handle = nullptr;
}

bool UcxWorker::is_closing() {
  std::erase_if(closing_, [this](void* request) {
    const bool closed = ucx().request_check_status(request) != UCS_INPROGRESS;
    if (closed) ucx().request_free(request);
    return closed;
  });
  return !closing_.empty();
}

bool UcxWorker::has_ended() {
  const base::LockGuard guard(lock());
  return !handle_;
}

bool UcxWorker::is_inherited() const { return process_ != ::getpid(); }

void UcxWorker::mark_ended() {
  handle_ = nullptr;
  flush_.under_way = false;
  unflushed_.store(false, std::memory_order_relaxed);
  for (const UcxPort* one : sleepers_) one->wake_up_->signal();
}

void UcxWorker::end() {
  for (UcxPort* const one : ports_) one->cancel_all();
  const auto any_pending = [this]() SLIP_REQUIRES(ucx_lock) {
    return std::any_of(ports_.begin(), ports_.end(),
                       [](const UcxPort* one) SLIP_REQUIRES(ucx_lock) { return !one->pending_.empty(); });
  };
  // Over TCP, UCX 1.13 can crash this process or the peer's when an endpoint is closed in the middle of a message.
  if (context_.is_plain_tcp() && any_pending()) return mark_ended();
  for (UcxEndpoint& one : endpoints_) close(one);
  flush();
  const auto is_busy = [&]() SLIP_REQUIRES(ucx_lock) { return is_closing() || flush_.under_way || any_pending(); };
  drive_until([&]() SLIP_REQUIRES(ucx_lock) { return !is_busy(); }, kMaxCloseNs);
  // UCX aborts the process if a worker is destroyed while it sends or receives. So a busy worker is not destroyed. UCX
  // then accesses no memory for it any more, because no thread drives it.
  if (!is_busy()) ucx().worker_destroy(handle_);
  mark_ended();
}

bool UcxWorker::arm() { return ucx().worker_arm(handle_) == UCS_OK; }

void UcxWorker::note_operation() {
  ++flush_.operations;
  // relaxed: the fence orders the store before wake()'s load of the flag that the proxy sleeps.
  if (unflushed_.load(std::memory_order_relaxed)) return;
  unflushed_.store(true, std::memory_order_relaxed);
  base::full_fence();
  Proxy::of_process().wake();
}

// Begins a flush. When UCX has passed the bytes of all operations begun so far to the kernel or the network, unflushed_
// becomes false, unless other operations have begun meanwhile.
void UcxWorker::flush() {
  if (flush_.under_way || !unflushed_.load(std::memory_order_relaxed)) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxWorker::on_flushed;
  params.user_data = this;
  flush_.covered = flush_.operations;
  flush_.under_way = UCS_PTR_IS_PTR(ucx().worker_flush(handle_, &params));
  if (!flush_.under_way) unflushed_.store(false, std::memory_order_relaxed);
}

// UCX calls it in the thread that drives the worker and holds its lock. A failed flush counts, too: the connection
// reports the error.
void UcxWorker::on_flushed(void* request, ucs_status_t, void* worker) SLIP_NO_THREAD_SAFETY_ANALYSIS {
  auto& one = *static_cast<UcxWorker*>(worker);
  one.flush_.under_way = false;
  if (one.flush_.covered == one.flush_.operations) one.unflushed_.store(false, std::memory_order_relaxed);
  one.ucx().request_free(request);
}

std::int64_t UcxWorker::tend(std::vector<pollfd>& all) noexcept SLIP_NO_THREAD_SAFETY_ANALYSIS {  // see UcxTryLock
  if (!unflushed_.load(std::memory_order_relaxed)) return 0;
  const auto limit = static_cast<std::uint64_t>(kUnattendedUs * base::ticks_per_us());
  const UcxTryLock held(*this);
  if (!held || base::ticks() - driven_ticks_.load(std::memory_order_relaxed) < limit)
    return base::now_ns() + kUnattendedNs;
  if (!handle_) return 0;
  while (ucx().worker_progress(handle_) != 0) {}
  flush();
  arm_for_sleepers();
  if (!unflushed_.load(std::memory_order_relaxed)) return 0;
  if (!arm()) return base::now_ns() + 1;
  all.push_back({descriptor_, POLLIN, 0});
  return base::now_ns() + kFlushAgainNs;  // a limit, because another thread may take the event
}

bool UcxWorker::progress() {
  driven_ticks_.store(base::ticks(), std::memory_order_relaxed);
  if (ucx().worker_progress(handle_) == 0) return false;
  arm_for_sleepers();
  return true;
}

// Call it after ucp_worker_progress, which may have taken the event for which another thread sleeps. It arms the worker
// again, so that the next event makes the descriptor ready. Otherwise that thread would sleep until its limit.
void UcxWorker::arm_for_sleepers() {
  if (sleepers_.empty()) return;
  for (int attempt = 0; attempt < kMaxArmAttempts; ++attempt) {
    if (arm()) return;
    ucx().worker_progress(handle_);
  }
  for (const UcxPort* one : sleepers_) one->wake_up_->signal();
}

UcxPort::UcxPort(std::shared_ptr<UcxWorker> worker) : worker_(std::move(worker)) {
  const base::LockGuard lock(worker_->lock());
  worker_->ports_.push_back(this);
}

UcxPort::~UcxPort() {
  if (worker_->is_inherited()) return;
  const base::LockGuard lock(worker_->lock());
  stop_sleeping();
  if (worker_->handle_ && !pending_.empty()) {
    cancel_all();
    if (endpoint_ && !pending_.empty() && !worker_->context().is_plain_tcp()) {
      worker_->close(*endpoint_);
      worker_->drive_until([this]() SLIP_REQUIRES(ucx_lock) { return pending_.empty(); }, kMaxCloseNs);
    }
    if (!pending_.empty()) worker_->end();
  }
  std::erase(worker_->ports_, this);
}

// Asks UCX to cancel all pending operations. UCX cancels only the receives that have no message yet.
void UcxPort::cancel_all() {
  const std::vector<UcxOperation*> all = pending_;  // the callbacks change the list
  for (const UcxOperation* one : all) {
    if (one->request) worker_->ucx().request_cancel(worker_->handle_, one->request);
  }
}

void UcxPort::start(UcxOperation& operation) {
  worker_->note_operation();
  operation.port = this;
  operation.complete = false;
  operation.request = nullptr;
}

bool UcxPort::started(UcxOperation& operation, ucs_status_ptr_t result) {
  if (operation.complete) return false;  // UCX called the callback before its function returned
  if (UCS_PTR_IS_PTR(result)) {
    operation.request = result;
    operation.place = pending_.size();
    pending_.push_back(&operation);
    return false;
  }
  operation.status = UCS_PTR_STATUS(result);
  operation.complete = true;
  return true;
}

void UcxPort::complete(UcxOperation& operation, ucs_status_t status) {
  if (operation.request) {
    pending_.back()->place = operation.place;
    pending_[operation.place] = pending_.back();
    pending_.pop_back();
    operation.request = nullptr;
  }
  operation.status = status;
  operation.complete = true;
  completed_.push_back(&operation);
  if (sleeping_) wake_up_->signal();
}

// UCX calls it in the thread that drives the worker and holds its lock.
void UcxPort::on_sent(void* request, ucs_status_t status, void* operation) SLIP_NO_THREAD_SAFETY_ANALYSIS {
  auto& one = *static_cast<UcxOperation*>(operation);
  one.port->complete(one, status);
  one.port->worker_->ucx().request_free(request);
}

// UCX calls it in the thread that drives the worker and holds its lock.
void UcxPort::on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* operation) SLIP_NO_THREAD_SAFETY_ANALYSIS {
  auto& one = *static_cast<UcxOperation*>(operation);
  one.bytes = info->length;
  one.port->complete(one, status);
  one.port->worker_->ucx().request_free(request);
}

bool UcxPort::progress() {
  stop_sleeping();
  const bool moved = worker_->handle_ && worker_->progress();
  return moved || !completed_.empty();
}

std::int64_t UcxPort::watch(std::vector<pollfd>& all) const {
  const base::LockGuard lock(worker_->lock());
  try {
    if (!wake_up_) wake_up_.emplace();
  } catch (const base::TooManyFiles&) {
    return kPollNs;
  }
  if (!sleeping_) worker_->sleepers_.push_back(this);
  sleeping_ = true;
  const bool can_sleep = worker_->handle_ && completed_.empty() && worker_->arm();
  if (!can_sleep) wake_up_->signal();
  if (worker_->handle_) all.push_back({worker_->descriptor_, POLLIN, 0});
  all.push_back({wake_up_->descriptor(), POLLIN, 0});
  return kNetMaxSleepNs;
}

void UcxPort::stop_sleeping() const {
  if (!sleeping_) return;
  std::erase(worker_->sleepers_, this);
  sleeping_ = false;
  wake_up_->drain();
}

}  // namespace slip::transport
#endif
