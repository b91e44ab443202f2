// The network transport over UCX: its listener, and both ends of a connection. The rules for callers are in net.hpp.
// Messages are tagged messages of UCX, which sends large ones by rendezvous.
//
// A connection begins with a TCP socket and a greeting (tcp_greeting.hpp). Over this socket the receiver sends the
// address of its worker; then the sender makes its endpoint. The socket stays open: over it the receiver reports a
// message that is too large, and the sender sends a goodbye message. If the socket ends without a goodbye, the peer is
// gone.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/fail.hpp"
#include "transport/net/net_choice.hpp"

#if SLIP_HAS_UCX
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "transport/net/tcp_greeting.hpp"
#include "transport/net_ucx/ucx_worker.hpp"
#endif

namespace slip::transport {

std::vector<std::string> fast_networks(const std::vector<std::string>& transports) {
  // UCX's transports within a host, and plain TCP. Those of accelerators have names like cuda_copy and rocm_ipc.
  constexpr std::string_view kOthers[] = {"tcp", "self", "sysv", "posix", "cma", "knem", "xpmem"};
  constexpr std::string_view kEndings[] = {"_copy", "_ipc", "_gdr"};
  std::vector<std::string> result;
  for (const std::string& one : transports) {
    const std::string_view name = std::string_view(one).substr(0, one.find('/'));
    const bool is_other = std::ranges::find(kOthers, name) != std::end(kOthers) ||
                          std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
    if (!is_other) result.push_back(one);
  }
  return result;
}

#if SLIP_HAS_UCX
namespace {

constexpr const char kMark[] = "ucx ";

// The receiver's first message over the socket. The address of its worker follows.
struct UcxAnswer {
  static constexpr std::uint32_t kMark = 0x75637831;  // "ucx1"
  std::uint32_t mark = kMark;
  std::uint32_t number = 0;  // of the connection: the upper half of the tags of its messages
  std::uint32_t address_bytes = 0;
  std::uint32_t reserved = 0;
};

// The receiver sends this over the socket if a message is larger than the receive that was posted for it.
struct UcxTooLarge {
  static constexpr std::uint32_t kMark = 0x75637862;  // "ucxb"
  std::uint32_t mark = kMark;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0, room = 0;  // of the message, and of the receive
};

// The last message over the socket of a sender that closes the connection cleanly.
struct UcxGoodbye {
  static constexpr std::uint32_t kMark = 0x75637867;  // "ucxg"
  std::uint32_t mark = kMark;
  std::uint32_t reserved = 0;
  std::uint64_t messages = 0;  // sent over the connection
};

constexpr std::uint32_t kMaxAddressBytes = 1 << 20;  // a worker's address has hundreds of bytes, some for each device
constexpr std::size_t kReadBytes = 4096;
// After the socket has ended without a goodbye message, messages that were sent before may still arrive. The receiver
// waits for the next one for kSilenceNs, and for kMaxWaitNs in all, because other ranks must learn of a lost rank
// within a second.
constexpr std::int64_t kSilenceNs = 50'000'000, kMaxWaitNs = 500'000'000;
// A goodbye message tells how many messages were sent. Some of them may still arrive: on a network that loses packets,
// much later than the goodbye message.
constexpr std::int64_t kAnnouncedNs = 10'000'000'000;
// The longest sleep after the end of the socket, so that the limits above are noticed in time.
constexpr std::int64_t kEndedSleepNs = 10'000'000;
constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};

template <class T>
std::optional<T> read_as(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T result;
  std::memcpy(&result, bytes.data(), sizeof(T));
  return result;
}

// UCX's tag of a message.
ucp_tag_t ucx_tag(std::uint32_t number, int tag) {
  return std::uint64_t{number} << 32 | static_cast<std::uint32_t>(tag);
}

class UcxMemory final : public NetMemory {
 public:
  UcxMemory(const UcxContext& context, std::span<std::byte> bytes)
      : NetMemory(bytes), context_(context), process_(::getpid()) {
    if (bytes.empty()) return;
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = bytes.data();
    params.length = bytes.size();
    if (const ucs_status_t status = context.ucx().mem_map(context.handle(), &params, &handle_); status != UCS_OK)
      base::fail(ErrorCode::kOutOfMemory, {},
                 "{} cannot register {} bytes at {}: {}. The limit of locked memory (ulimit -l) may be too low",
                 context.ucx().text, bytes.size(), fmt::ptr(bytes.data()), context.status_text(status));
  }
  ~UcxMemory() override {
    if (handle_ && process_ == ::getpid()) context_.ucx().mem_unmap(context_.handle(), handle_);
  }
  ucp_mem_h handle() const { return handle_; }

 private:
  const UcxContext& context_;
  const pid_t process_;         // in a forked child, the parent's memory must not be deregistered
  ucp_mem_h handle_ = nullptr;  // null: no bytes
};

ucp_request_param_t ucx_params(UcxOperation& operation, const NetPart& part) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxPort::on_sent;
  params.user_data = &operation;
  const auto* const memory = part.bytes > 0 ? dynamic_cast<const UcxMemory*>(part.memory) : nullptr;
  if (memory && memory->handle()) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = memory->handle();
  }
  return params;
}

// IdleCheck: limits how often an idle connection reads its socket, which costs a system call. The limit is a time, not
// a number of calls: while a message is on its way, a waiting thread makes hundreds of calls that move nothing.
class IdleCheck {
 public:
  // Call it when nothing moved. True: read the socket now.
  bool due() {
    const std::uint64_t now = base::ticks();
    if (static_cast<double>(now - looked_ticks_) < kEveryUs * base::ticks_per_us()) return false;
    looked_ticks_ = now;
    return true;
  }
  void make_due() { looked_ticks_ = 0; }

 private:
  static constexpr double kEveryUs = 200;
  std::uint64_t looked_ticks_ = 0;
};

// What both ends of a connection have. `Base`: NetSender or NetReceiver.
template <class Base>
class UcxEnd : public Base {
 public:
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override {
    return std::make_unique<UcxMemory>(port_.worker().context(), bytes);
  }
  bool keeps_addresses() const override { return true; }

 protected:
  UcxEnd(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker, std::size_t max_operations)
      : socket_(std::move(socket)), operations_(max_operations), port_(std::move(worker)) {
    this->peer_ = std::move(peer);
  }
  void require_worker() SLIP_REQUIRES(ucx_lock) {
    if (port_.worker().handle()) return;
    this->fail(ErrorCode::kAborted,
               "{}: the connection has ended, because this rank closed another one in the middle of a message",
               this->peer_.text());
  }
  // Drives the worker and calls finish() with each operation that UCX has completed. False: nothing moved.
  template <class Finish>
  bool drive(const Finish& finish) SLIP_REQUIRES(ucx_lock) {
    const bool moved = port_.progress();
    return take_completed(finish) || moved;
  }
  template <class Finish>
  bool take_completed(const Finish& finish) SLIP_REQUIRES(ucx_lock) {
    if (port_.completed().empty()) return false;
    for (const UcxOperation* one : port_.completed()) finish(*one);
    port_.completed().clear();
    return true;
  }

  Socket socket_;
  std::vector<UcxOperation> operations_;
  UcxPort port_;  // after the operations: its destructor cancels those that are pending
  mutable IdleCheck idle_;
};

class UcxSender final : public UcxEnd<NetSender> {
 public:
  UcxSender(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker)
      : UcxEnd(std::move(peer), std::move(socket), std::move(worker), kNetMaxRequests) {}
  ~UcxSender() override {
    if (under_way_ > 0 || port_.worker().is_inherited()) return;
    const UcxGoodbye goodbye{.messages = sent_};
    static_cast<void>(socket_.try_send(std::as_bytes(std::span(&goodbye, 1))));
  }

  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool) override {
    NetRequest* request = take_send(part);
    if (!request) return nullptr;
    ++under_way_;
    const std::size_t index = request->index;
    const base::LockGuard lock(port_.worker().lock());
    require_worker();
    if (!port_.endpoint() || !queued_.empty()) queued_.push_back(index);
    else send(index);
    return request;
  }

  bool progress() override SLIP_NO_THREAD_SAFETY_ANALYSIS {  // see UcxTryLock
    require_no_error();
    if (under_way_ == 0 && port_.endpoint()) {
      if (idle_.due()) static_cast<void>(read_socket());
      return false;
    }
    UcxWorker& worker = port_.worker();
    if (!port_.endpoint()) {
      const base::LockGuard lock(worker.lock());
      require_worker();
      return read_socket();
    }
    const UcxTryLock held(worker);
    if (!held) return false;
    require_worker();
    bool moved = drive([this](const UcxOperation& one) { finish(one); });
    if (port_.endpoint()->status != UCS_OK && under_way_ > 0) fail_lost(port_.endpoint()->status);
    if (!moved && idle_.due()) moved = read_socket();
    return moved;
  }

  std::int64_t watch(std::vector<pollfd>& all) const override {
    idle_.make_due();
    all.push_back({socket_.descriptor(), POLLIN, 0});
    return port_.endpoint() ? port_.watch(all) : kNetMaxSleepNs;
  }

 private:
  void send(std::size_t index) SLIP_REQUIRES(ucx_lock) {
    UcxOperation& operation = operations_[index];
    const NetPart& part = requests_[index].parts[0];
    operation.index = static_cast<std::uint32_t>(index);
    port_.start(operation);
    const ucp_request_param_t params = ucx_params(operation, part);
    const UcxLibrary& ucx = port_.worker().ucx();
    ++sent_;
    if (port_.started(operation, ucx.tag_send(port_.endpoint()->handle, part.data, part.bytes,
                                              ucx_tag(number_, part.tag), &params)))
      finish(operation);
  }

  void finish(const UcxOperation& operation) {
    if (operation.status != UCS_OK) fail_lost(operation.status);
    NetRequest& request = requests_[operation.index];
    if (request.parts[0].bytes >= kUcxRendezvousBytes) port_.endpoint()->is_new = false;
    request.done = true;
    --under_way_;
  }

  // Reads the answer, then a refusal. False: no bytes have arrived. Not analysed: requires the worker's lock unless
  // there is an endpoint already.
  bool read_socket() SLIP_NO_THREAD_SAFETY_ANALYSIS {
    std::array<std::byte, kReadBytes> bytes;
    const Socket::Moved moved = socket_.try_recv(bytes);
    unread_.insert(unread_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
    bool acted = false;
    if (!port_.endpoint()) acted = read_answer();
    if (port_.endpoint()) read_refusal(moved.ended, moved.error);
    else if (moved.ended) read_refusal(true, moved.error);
    return acted || moved.bytes > 0;
  }

  // Reads the address of the receiver's worker. False: it has not arrived completely.
  bool read_answer() SLIP_REQUIRES(ucx_lock) {
    const std::optional<UcxAnswer> answer = read_as<UcxAnswer>(unread_);
    if (!answer) return false;
    if (answer->mark != UcxAnswer::kMark || answer->address_bytes == 0 || answer->address_bytes > kMaxAddressBytes)
      fail(ErrorCode::kIo,
           "{} sent bytes that are no address of UCX: both sides must run the same version of Slipstream",
           peer_.text());
    if (unread_.size() < sizeof(UcxAnswer) + answer->address_bytes) return false;
    number_ = answer->number;
    connect();
    unread_.erase(unread_.begin(),
                  unread_.begin() + static_cast<std::ptrdiff_t>(sizeof(UcxAnswer) + answer->address_bytes));
    for (const std::size_t index : std::exchange(queued_, {})) send(index);
    return true;
  }

  void connect() SLIP_REQUIRES(ucx_lock) {
    const UcxContext& context = port_.worker().context();
    ucs_status_t status = UCS_OK;
    port_.set_endpoint(port_.worker().connect(std::span(unread_).subspan(sizeof(UcxAnswer)), status));
    if (port_.endpoint()) return;
    const std::string limits = ucx_limits_text();
    fail(ErrorCode::kUnsupported,
         "{}: {} has no transport that reaches it: {}. This rank has {}{}. Compare with `ucx_info -d` on the other "
         "host, set the variables of UCX alike, or set SLIP_NET=tcp",
         peer_.text(), context.ucx().text, context.status_text(status), fmt::join(context.transports(), ", "),
         limits.empty() ? "" : " with " + limits);
  }

  // Throws if the receiver has sent UcxTooLarge. Also throws if the receiver has closed the connection (`ended`) and
  // messages are not sent yet; otherwise the end is no error.
  void read_refusal(bool ended, int error) {
    if (const std::optional<UcxTooLarge> refusal = read_as<UcxTooLarge>(unread_);
        port_.endpoint() && refusal && refusal->mark == UcxTooLarge::kMark)
      fail(ErrorCode::kInvalidValue,
           "{} has room for {} bytes only: {} bytes with tag {} were sent; both sides must agree on sizes",
           peer_.text(), refusal->room, refusal->bytes, refusal->tag);
    if (!ended || under_way_ == 0) return;
    fail(ErrorCode::kRankLost, "{} closed the connection with {} messages not yet sent{}", peer_.text(), under_way_,
         reason_text(error));
  }

  [[noreturn]] void fail_lost(ucs_status_t status) {
    static_cast<void>(read_socket());  // the receiver may have sent the reason
    fail(ErrorCode::kRankLost, "{} is gone: sending over UCX failed: {}", peer_.text(),
         port_.worker().context().status_text(status));
  }

  std::vector<std::byte> unread_;  // bytes that were received over the socket and not used yet
  std::uint32_t number_ = 0;
  std::vector<std::size_t> queued_;  // messages that wait for the endpoint
  std::size_t under_way_ = 0;        // messages that are queued, or not completed by UCX
  std::uint64_t sent_ = 0;           // messages that were passed to UCX
};

class UcxReceiver final : public UcxEnd<NetReceiver> {
 public:
  UcxReceiver(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker, std::uint32_t number)
      : UcxEnd(std::move(peer), std::move(socket), std::move(worker), kNetMaxRequests * kNetMaxParts),
        number_(number) {}

  NetRequest* irecv(std::span<const NetPart> parts) override {
    NetRequest* request = take_receive(parts);
    if (!request) return nullptr;
    const std::size_t index = request->index;
    missing_[index] = static_cast<std::uint8_t>(parts.size());
    unfinished_ += parts.size();
    UcxWorker& worker = port_.worker();
    const base::LockGuard lock(worker.lock());
    require_worker();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      UcxOperation& operation = operations_[index * kNetMaxParts + part];
      operation.index = static_cast<std::uint32_t>(index * kNetMaxParts + part);
      port_.start(operation);
      ucp_request_param_t params = ucx_params(operation, parts[part]);
      params.cb.recv = &UcxPort::on_received;
      // A message that came before its receive is reported by the callback, too: UCX 1.13 returns its length in no
      // other way.
      params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
      const ucs_status_ptr_t result = worker.ucx().tag_recv(worker.handle(), parts[part].data, parts[part].bytes,
                                                            ucx_tag(number_, parts[part].tag), kWholeTag, &params);
      if (port_.started(operation, result)) finish_part(operation);
    }
    static_cast<void>(take_completed([this](const UcxOperation& one) { finish_part(one); }));
    return request;
  }

  bool progress() override SLIP_NO_THREAD_SAFETY_ANALYSIS {  // see UcxTryLock
    require_no_error();
    if (unfinished_ == 0) return false;
    UcxWorker& worker = port_.worker();
    const UcxTryLock held(worker);
    if (!held) return false;
    require_worker();
    const bool moved = drive([this](const UcxOperation& one) { finish_part(one); });
    if (ended_) check_end(moved);
    else if (!moved && idle_.due()) read_socket();
    return moved;
  }

  std::int64_t watch(std::vector<pollfd>& all) const override {
    idle_.make_due();
    // A socket that has ended is always readable: a thread that polls it would not sleep.
    if (ended_) return std::min(port_.watch(all), kEndedSleepNs);
    all.push_back({socket_.descriptor(), POLLIN, 0});
    return port_.watch(all);
  }

 private:
  void finish_part(const UcxOperation& operation) {
    const std::size_t index = operation.index / kNetMaxParts, part = operation.index % kNetMaxParts;
    NetRequest& request = requests_[index];
    if (operation.status == UCS_ERR_MESSAGE_TRUNCATED) fail_too_large(operation, request.parts[part]);
    if (operation.status != UCS_OK)
      fail(ErrorCode::kRankLost, "{} is gone: receiving over UCX failed: {}", peer_.text(),
           port_.worker().context().status_text(operation.status));
    request.moved[part] = operation.bytes;
    ++received_;
    --unfinished_;
    if (--missing_[index] == 0) request.done = true;
  }

  [[noreturn]] void fail_too_large(const UcxOperation& operation, const NetPart& part) {
    const UcxTooLarge refusal{.tag = part.tag, .bytes = operation.bytes, .room = part.bytes};
    static_cast<void>(socket_.try_send(std::as_bytes(std::span(&refusal, 1))));
    fail(ErrorCode::kInvalidValue,
         "{} sent {} bytes with tag {}, and the receive has room for {}; both sides must agree on sizes", peer_.text(),
         operation.bytes, part.tag, part.bytes);
  }

  // A sender that closes the connection cleanly sends UcxGoodbye. If its process was killed, the socket ends without
  // it.
  void read_socket() {
    const Socket::Moved moved = socket_.try_recv(std::span(goodbye_).subspan(goodbye_bytes_));
    goodbye_bytes_ += moved.bytes;
    ended_ = moved.ended || goodbye_bytes_ == goodbye_.size();
    end_error_ = moved.error;
    if (ended_) ended_ns_ = moved_ns_ = base::now_ns();
  }

  // The sender sends no more messages. Those that it sent before may still arrive. Throws when it is too late for them.
  void check_end(bool moved) {
    const std::int64_t now = base::now_ns();
    if (moved) moved_ns_ = now;
    UcxGoodbye goodbye;
    std::memcpy(&goodbye, goodbye_.data(), sizeof(goodbye));
    const bool said_goodbye = goodbye_bytes_ == sizeof(goodbye) && goodbye.mark == UcxGoodbye::kMark;
    const bool may_come = said_goodbye ? received_ < goodbye.messages && now - ended_ns_ < kAnnouncedNs
                                       : now - moved_ns_ < kSilenceNs && now - ended_ns_ < kMaxWaitNs;
    if (unfinished_ == 0 || may_come) return;
    fail(ErrorCode::kRankLost, "{} is gone: it closed the connection while {} of its messages were expected{}",
         peer_.text(), unfinished_, reason_text(end_error_));
  }

  const std::uint32_t number_;
  std::array<std::uint8_t, kNetMaxRequests> missing_{};  // by request: parts that have not arrived
  std::size_t unfinished_ = 0;                           // parts of all requests that have not arrived
  std::uint64_t received_ = 0;                           // messages that have arrived
  std::array<std::byte, sizeof(UcxGoodbye)> goodbye_{};
  std::size_t goodbye_bytes_ = 0;
  // After the end of the socket, messages may still arrive over UCX's own connections.
  bool ended_ = false;
  int end_error_ = 0;
  std::int64_t ended_ns_ = 0, moved_ns_ = 0;  // when the socket ended, and when UCX last made progress after that
};

class UcxListener final : public GreetingListener {
 public:
  explicit UcxListener(const NetOptions& options)
      : GreetingListener(options, kMark), key_(options.key), rank_(options.rank) {}

 private:
  // The worker is made for the first connection: a process that only listens may still fork.
  std::unique_ptr<NetReceiver> make_receiver(Arrived arrived) override {
    if (!worker_) worker_ = UcxWorker::of_rank(key_, rank_);
    UcxAnswer answer{.address_bytes = static_cast<std::uint32_t>(worker_->address().size())};
    {
      const base::LockGuard lock(worker_->lock());
      answer.number = worker_->new_number();
    }
    std::vector<std::byte> bytes(sizeof(answer));
    std::memcpy(bytes.data(), &answer, sizeof(answer));
    bytes.insert(bytes.end(), worker_->address().begin(), worker_->address().end());
    Socket socket = std::move(arrived.sockets.front());
    // One call sends all of it: a new socket takes far more bytes at once. If the sender has closed its socket, the
    // receiver finds that later.
    static_cast<void>(socket.try_send(bytes));
    return std::make_unique<UcxReceiver>(std::move(arrived.peer), std::move(socket), worker_, answer.number);
  }

  const Secret key_;
  const int rank_;
  std::shared_ptr<UcxWorker> worker_;
};

class UcxNet final : public Net {
 public:
  std::unique_ptr<NetListener> listen(const NetOptions& options) const override {
    return std::make_unique<UcxListener>(options);
  }

  std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                     const Deadline& deadline) const override {
    NetOptions one = options;  // options of TCP sockets do not apply
    one.sockets = 1;
    one.stripe_bytes = 1;
    Greeted greeted = connect_and_greet(handle, kMark, one, deadline);
    return std::make_unique<UcxSender>(std::move(greeted.peer), std::move(greeted.sockets.front()),
                                       UcxWorker::of_rank(options.key, options.rank));
  }
};

}  // namespace

const Net& net_ucx() {
  static const UcxNet kNet;
  static_cast<void>(UcxContext::of_process());  // throws if UCX cannot be used
  return kNet;
}

UcxReport ask_ucx() {
  try {
    const UcxContext& context = UcxContext::of_process();
    return {context.ucx().text, {}, context.transports(), context.reaches_cuda()};
  } catch (const Error& error) {
    return {{}, base::bare_text(error), {}, false};
  }
}

#else

const Net& net_ucx() {
  base::fail(
      ErrorCode::kUnsupported, {},
      "this build of Slipstream has no UCX: the headers of UCX 1.13 or later (Debian: libucx-dev) were not found "
      "when it was configured. Install them and build again, or set SLIP_NET=tcp");
}

UcxReport ask_ucx() { return {{}, "this build has no UCX: its headers were not found", {}, false}; }

#endif

}  // namespace slip::transport
