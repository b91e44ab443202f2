#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "transport/net/net_choice.hpp"
#include "transport/net/tcp_greeting.hpp"
#include "transport/net_plugin/plugin_end.hpp"

namespace slip::transport {
namespace {

// A listener's handle is the address of its control socket. The receiver gives the address in the plug-in's network to
// each sender on request, because a listener of a plug-in accepts one connection only.
constexpr const char kMark[] = "plug";

class PluginListener final : public GreetingListener {
 public:
  PluginListener(const NetPlugin& plugin, const NetOptions& options)
      : GreetingListener(options, kMark), plugin_(plugin), context_(plugin.context_of(options.key, options.rank)) {}

 private:
  std::unique_ptr<NetReceiver> make_receiver(Arrived arrived) override {
    return make_plugin_receiver(plugin_, context_, std::move(arrived.peer), std::move(arrived.sockets.front()));
  }

  const NetPlugin& plugin_;
  const std::shared_ptr<const PluginContext> context_;  // null: the plug-in has no contexts
};

class LoadedNet final : public Net {
 public:
  explicit LoadedNet(const NetPlugin& plugin) : plugin_(plugin) {}

  std::unique_ptr<NetListener> listen(const NetOptions& options) const override {
    return std::make_unique<PluginListener>(plugin_, options);
  }

  std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                     const Deadline& deadline) const override {
    NetOptions control = options;
    control.sockets = 1;
    Greeted greeted = connect_and_greet(handle, kMark, control, deadline);
    greeted.peer.channel = options.channel;
    return make_plugin_sender(plugin_, plugin_.context_of(options.key, options.rank), std::move(greeted.peer),
                              std::move(greeted.sockets.front()));
  }

 private:
  const NetPlugin& plugin_;
};

}  // namespace

PluginNet net_plugin(const std::string& name) {
  const NetPlugin& plugin = NetPlugin::load(name);
  std::string devices;
  for (const PluginDevice& one : plugin.devices())
    devices += fmt::format("{}{} ({} Mbit/s)", devices.empty() ? "" : ", ", one.name, one.speed_mbps);
  static base::ForkMutex mutex;
  // Never deleted, as in load().
  static auto* const kMade SLIP_PT_GUARDED_BY(mutex) = new std::map<const NetPlugin*, std::unique_ptr<const LoadedNet>>;
  const base::LockGuard lock(mutex);
  std::unique_ptr<const LoadedNet>& net = (*kMade)[&plugin];
  if (!net) net = std::make_unique<const LoadedNet>(plugin);
  return {net.get(), plugin.name(), fmt::format("{}; devices: {}", plugin.text(), devices)};
}

PluginMemory::~PluginMemory() { comm_->deregister(*this); }

void PluginComm::refuse(const NetPart& part, const NetPeer& peer) const {
  base::fail(ErrorCode::kInvalidValue, {},
             "{}: the memory of {} bytes with tag {} was registered with another connection", peer.text(), part.bytes,
             part.tag);
}

void* PluginComm::register_memory(const NetMemory* memory, const NetPeer& peer) {
  // Callers pass NetMemory as const. The registration with the plug-in is not visible to them, so it may change here.
  auto* const own = const_cast<PluginMemory*>(static_cast<const PluginMemory*>(memory));
  own->handle_ = register_bytes(own->bytes(), own->gpu_, peer);
  registered_.push_back(own);
  own->registered_ = true;
  return own->handle_;
}

PluginComm::EmptyBuffer PluginComm::empty_buffer(const NetPeer& peer) {
  if (!empty_registered_) {
    empty_handle_ = register_bytes(empty_bytes_, std::nullopt, peer);
    empty_registered_ = true;
  }
  return {empty_bytes_, empty_handle_};
}

void* PluginComm::register_bytes(std::span<std::byte> bytes, const std::optional<PluginMemory::Gpu>& gpu,
                                 const NetPeer& peer) {
  void* handle = nullptr;
  const bool dma_buf = gpu && gpu->dma_buf >= 0;
  const net_result result =
      dma_buf
          ? calls().reg_mr_dma_buf(comm_, bytes.data(), bytes.size(), NET_PTR_CUDA, gpu->offset, gpu->dma_buf, &handle)
          : calls().reg_mr(comm_, bytes.data(), bytes.size(), gpu ? NET_PTR_CUDA : NET_PTR_HOST, &handle);
  if (result != NET_SUCCESS)
    throw plugin_.error(fmt::format("{} of {} bytes", dma_buf ? "regMrDmaBuf" : "regMr", bytes.size()), result,
                        peer.text());
  return handle;
}

void PluginComm::deregister(PluginMemory& memory) {
  if (!memory.registered_) return;
  memory.registered_ = false;
  std::erase(registered_, &memory);
  if (is_inherited()) return;
  static_cast<void>(calls().dereg_mr(comm_, memory.handle_));  // nothing can be done if it fails
}

void PluginComm::close() {
  if (comm_ && !is_inherited()) {
    while (!registered_.empty()) deregister(*registered_.back());
    if (std::exchange(empty_registered_, false)) static_cast<void>(calls().dereg_mr(comm_, empty_handle_));
    static_cast<void>(side_ == Side::kSend ? calls().close_send(comm_) : calls().close_recv(comm_));
  }
  comm_ = nullptr;
  context_ = nullptr;
}

bool PluginControl::receive(std::span<std::byte> bytes) {
  const Socket::Moved moved = socket_.try_recv(bytes.subspan(received_));
  received_ += moved.bytes;
  if (received_ == bytes.size()) {
    received_ = 0;
    return true;
  }
  if (moved.ended) {
    ended_ns_ = base::now_ns();
    error_ = moved.error;
  }
  return false;
}

bool PluginControl::send(std::span<const std::byte> bytes) {
  // The socket's buffer holds only a few such short messages, so the kernel accepts each of them completely.
  return socket_.valid() && !ended() && socket_.try_send(bytes).bytes == bytes.size();
}

void PluginControl::look() {
  if (ended()) return;
  // After the notice, only the end can follow.
  std::byte beyond{};
  auto room = notice() ? std::span(&beyond, 1) : std::as_writable_bytes(std::span(&notice_, 1)).subspan(got_);
  const Socket::Moved moved = socket_.try_recv(room);
  if (!notice()) got_ += moved.bytes;
  if (!moved.ended) return;
  ended_ns_ = base::now_ns();
  error_ = moved.error;
}

}  // namespace slip::transport
