#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/fail.hpp"
#include "transport/net/net_choice.hpp"

#if SLIP_HAS_UCX
#include <unistd.h>

#include "transport/net/tcp_greeting.hpp"
#include "transport/net_ucx/ucx.hpp"
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

class UcxListener final : public NetListener {
 public:
  explicit UcxListener(const NetOptions& options) : listener_(options, kMark), key_(options.key), rank_(options.rank) {
    handle_ = listener_.handle();
  }

  // The worker is made for the first connection: a process that only listens may still fork.
  std::unique_ptr<NetReceiver> accept(const Deadline* deadline) override {
    std::optional<GreetingListener::Arrived> one = listener_.accept(deadline);
    if (!one) return nullptr;
    if (!worker_) worker_ = UcxWorker::of_rank(key_, rank_);
    UcxAnswer answer{.address_bytes = static_cast<std::uint32_t>(worker_->address().size())};
    {
      const base::LockGuard lock(worker_->lock());
      answer.number = worker_->new_number();
    }
    std::vector<std::byte> bytes(sizeof(answer));
    std::memcpy(bytes.data(), &answer, sizeof(answer));
    bytes.insert(bytes.end(), worker_->address().begin(), worker_->address().end());
    Socket socket = std::move(one->sockets.front());
    // One call sends all of it: a new socket takes far more bytes at once. If the sender has closed its socket, the
    // receiver finds that later.
    static_cast<void>(socket.try_send(bytes));
    return std::make_unique<UcxReceiver>(std::move(one->peer), std::move(socket), worker_, answer.number);
  }

 private:
  GreetingListener listener_;
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

UcxMemory::UcxMemory(const UcxContext& context, std::span<std::byte> bytes)
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

UcxMemory::~UcxMemory() {
  if (handle_ && process_ == ::getpid()) context_.ucx().mem_unmap(context_.handle(), handle_);
}

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
